"""The state keeper: void from the first byte until every rank has verified, and clocks that name what is held."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from checkpointing.errors import TransferError, TransferStopped
from configs.words import SCRATCH, Exit, ExitRequest, Lineage
from replica_groups.signals import AttemptOver
from tests.support.grants import death, grant, quorum_id, seating
from tests.support.states import clocks
from tests.support.training import Rig, rig, world_of_one
from trainer.state import _in_turn

LIMIT_S = 20
CURRENT = Lineage(12, quorum_id(3))
HELD = clocks(12)
BEHIND = grant("g0", "g1", healing=("g0",), current=CURRENT, attempt=5, running=4)


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


@pytest.fixture
def beside():
    with ThreadPoolExecutor() as pool:
        yield pool


class Source:
    """A peer whose transfer stops where the test wants it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.asked, self.begin, self.arrive, self.end = (threading.Event() for _ in range(4))
        self.stopped = threading.Event()
        self.error: Exception | None = None

    def fetch(self, sources: list[str], **options: Any) -> Any:
        self.calls.append({"sources": sources, **options})
        self.asked.set()
        self._wait(self.begin, options)
        options["on_first_byte"]()
        self.arrive.set()
        self._wait(self.end, options)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(clocks=HELD, bytes=640, seconds=0.1, sources=("g1:0",), differing={})

    def _wait(self, event: threading.Event, options: dict[str, Any]) -> None:
        while not event.wait(0.005):
            if options["stop"]():
                self.stopped.set()
                raise TransferStopped("the attempt is over")


@pytest.fixture
def healer(beside):
    """Makes a rank whose peer is a ``Source``; transfers still under way end with the test."""
    sources: list[Source] = []

    def make(*, good: bool) -> tuple[Rig, Source]:
        made, source = rig(good=good), Source()
        sources.append(source)
        made.state.fetch = source.fetch
        return made, source

    yield make
    for source in sources:
        source.begin.set()
        source.end.set()


def test_state_is_void_from_the_first_byte_until_all_ranks_have_taken_it(beside, healer):
    """It was good but stale: an orphaned commit, say. Until a byte arrives it still is what it was."""
    made, source = healer(good=True)
    taking = beside.submit(made.state.take, seating(BEHIND))
    assert source.asked.wait(LIMIT_S)
    assert not made.state.void
    source.begin.set()
    assert source.arrive.wait(LIMIT_S)
    assert made.state.void
    source.end.set()
    taking.result(LIMIT_S)
    assert made.state.void  # this rank has verified; the others may not have
    assert made.state.clocks == made.state.scratch
    made.state.taken(seating(BEHIND))
    assert not made.state.void
    assert made.state.clocks == HELD
    (heal,) = made.named("heal")
    assert (heal["step"], heal["sources"], heal["bytes"]) == (12, ["g1"], 640)


def test_state_that_only_this_rank_has_taken_is_forgotten_with_its_attempt(healer):
    """A fellow was told of a loss and the ranks left the attempt together: they must agree on what they claim."""
    made, source = healer(good=False)
    source.begin.set()
    source.end.set()
    made.state.take(seating(BEHIND))
    again = grant("g0", "g1", current=SCRATCH, attempt=6)
    made.state.take(seating(again))
    made.state.taken(seating(again))
    assert made.state.clocks == made.state.scratch


def test_heal_asks_for_exactly_the_current_state(beside, healer):
    made, source = healer(good=False)
    source.begin.set()
    source.end.set()
    made.state.take(seating(BEHIND))
    (call,) = source.calls
    assert (call["attempt"], call["quorum_id"], call["lineage"]) == (5, quorum_id(4), CURRENT)
    assert call["sources"] == ["g1:0"]
    assert call["tensors"] is made.state.tensors


def test_loss_before_the_first_byte_leaves_the_state_as_it_was(beside, healer):
    made, source = healer(good=True)
    taking = beside.submit(made.state.take, seating(BEHIND))
    assert source.asked.wait(LIMIT_S)
    made.parts.signals.notice(death("g1"))
    with pytest.raises(AttemptOver):
        taking.result(LIMIT_S)
    assert not made.state.void
    assert made.state.clocks.lineage == SCRATCH


def test_loss_during_the_transfer_is_raised_once_nobody_writes_any_more(beside, healer):
    made, source = healer(good=True)
    source.begin.set()
    taking = beside.submit(made.state.take, seating(BEHIND))
    assert source.arrive.wait(LIMIT_S)
    made.parts.signals.notice(death("g1"))
    with pytest.raises(AttemptOver):
        taking.result(LIMIT_S)
    assert source.stopped.is_set()
    assert made.state.void


def test_void_without_a_source_ends_the_incarnation(healer):
    made, source = healer(good=False)
    made.state.patience_s = 0.01
    source.error = TransferError("every source has failed")
    source.begin.set()
    source.end.set()
    with pytest.raises(ExitRequest, match="no source is left") as caught:
        made.state.take(seating(BEHIND))
    assert caught.value.code is Exit.INCARNATION_OVER
    assert made.state.void


def test_source_that_failed_because_it_died_is_a_discard(beside, healer):
    """The transfer breaks a moment before the gateway says why."""
    made, source = healer(good=False)
    made.state.patience_s = 3600.0
    source.error = TransferError("connection reset")
    source.begin.set()
    source.end.set()
    taking = beside.submit(made.state.take, seating(BEHIND))
    assert source.arrive.wait(LIMIT_S)
    made.parts.signals.notice(death("g1"))
    with pytest.raises(AttemptOver):
        taking.result(LIMIT_S)


def test_nobody_who_serves_ends_the_incarnation(healer):
    made, _ = healer(good=False)
    nobody = grant("g0", "g1", healing=("g0", "g1"), current=CURRENT)
    with pytest.raises(ExitRequest) as caught:
        made.state.take(seating(nobody))
    assert caught.value.code is Exit.INCARNATION_OVER


def test_other_state_than_granted_ends_the_incarnation():
    made = rig()
    with pytest.raises(ExitRequest) as caught:
        made.state.taken(seating(grant(current=CURRENT)))
    assert caught.value.code is Exit.INCARNATION_OVER


@pytest.mark.parametrize("healing", [(), ("g1",)])
def test_window_is_open_exactly_while_somebody_heals(healing):
    made = rig()
    made.state.take(seating(grant("g0", "g1", healing=healing, attempt=7)))
    assert made.server.is_open is bool(healing)
    made.state.close_window()
    assert not made.server.is_open
    if healing:
        (window,) = made.server.windows
        assert (window["attempt"], window["lineage"]) == (7, SCRATCH)
        assert window["tensors"] is made.state.tensors
        assert window["clocks"] == made.state.clocks


def test_healers_start_at_different_sources():
    four = grant("g0", "g1", "g2", "g3", healing=("g0", "g2"))
    assert _in_turn(four, group="g0", rank=0) == [("g1", "g1:0"), ("g3", "g3:0")]
    assert _in_turn(four, group="g2", rank=1) == [("g3", "g3:1"), ("g1", "g1:1")]
    assert _in_turn(four, group="g2", rank=9) == []  # nobody has such a rank


# -- provisional commits -----------------------------------------------------------------------------------------------


def committed() -> Rig:
    made = rig()
    made.state.clocks = HELD
    made.state.committed(CURRENT)
    return made


def test_commit_is_confirmed_by_a_quorum_that_has_it_as_its_current_state():
    made = committed()
    made.state.settle(grant("g0", current=CURRENT))
    assert made.disk.told == [("confirm", CURRENT)]
    assert made.named("orphaned") == []
    made.state.settle(grant("g0", current=CURRENT))
    assert len(made.disk.told) == 1  # once


@pytest.mark.parametrize(
    "told",
    [
        grant("g0", "g1", healing=("g0",), current=Lineage(12, quorum_id(9))),
        grant("g0", "g1", healing=("g0",), current=Lineage(11, quorum_id(3))),
        grant("g0", current=CURRENT, restore=CURRENT),
    ],
    ids=["another commit of the step", "nobody else committed", "rolled back"],
)
def test_commit_that_no_quorum_seats_is_orphaned_and_reported(told):
    made = committed()
    made.state.settle(told)
    assert made.disk.told == [("orphan", CURRENT)]
    (event,) = made.named("orphaned")
    assert (event["step"], event["lineage"]) == (12, str(CURRENT))
    assert made.state.unconfirmed is None


def test_void_state_confirms_nothing():
    made = committed()
    made.state.void = True
    made.state.settle(grant("g0", current=CURRENT))
    assert made.disk.told == [("orphan", CURRENT)]


def test_state_without_a_commit_of_its_own_settles_nothing():
    made = rig()
    made.state.settle(grant("g0", current=CURRENT))
    assert made.disk.told == []
