"""The seat of a group of two ranks at a real gateway: the ranks agree, ask, leave and vote as one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from configs.words import SCRATCH, DiscardReason, ExitRequest, Lineage
from replica_groups.seat import Seat, Standing
from replica_groups.signals import AttemptOver
from tests.support.grants import quorum_id
from tests.support.lighthouse import InThread, terms, wait_until
from tests.support.ranks import run_ranks
from tests.support.seats import Rank

GOOD = Standing(lineage=SCRATCH, void=False, drain=False, finished=False, fresh=False)


def standing(**changes: Any) -> Standing:
    return Standing(**{**GOOD.__dict__, **changes})


def _agreement(seat: Seat, rank: int) -> dict[str, Any]:
    """What ``agree`` gives on this rank when rank 1 differs from rank 0 in one thing."""
    cases: dict[str, Any] = {
        "same": {},
        "drain": {"drain": True},
        "fresh": {"fresh": True},
        "lineage": {"lineage": Lineage(0, quorum_id(1))},
        "step": {"lineage": Lineage(1, 0)},
        "void": {"void": True},
        "finished": {"finished": True},
    }
    found: dict[str, Any] = {}
    for name, changes in cases.items():
        try:
            found[name] = seat.agree(standing(**changes) if rank else GOOD)
        except ExitRequest as request:
            found[name] = int(request.code)
    return found


def _over(seat: Seat, rank: int) -> list[str | None]:
    """Reasons that ``together`` gives: nobody is over, then rank 1 is."""
    found: list[str | None] = []
    for mine in (None, AttemptOver(DiscardReason.PEER_LOST, "told") if rank else None):
        try:
            seat.together(mine)
            found.append(None)
        except AttemptOver as over:
            found.append(over.text)
    return found


def _group(rank: int, world: int, url: str, ready: Path) -> dict[str, Any]:
    me = Rank(url, "g0", terms(), rank=rank, world=world)
    seat, signals = me.seat, me.signals
    found: dict[str, Any] = {"agree": _agreement(seat, rank), "together": _over(seat, rank)}

    first = seat.quorum(seat.agree(standing(void=True)))
    found["first"] = (first.grant, first.rank, first.size)
    found["votes"] = [seat.vote(step=0, complete=True), seat.vote(step=0, complete=rank == 0)]
    if rank == 0:
        ready.touch()
    try:
        seat.connect(first)  # the other group never comes to it
        found["connect"] = None
    except AttemptOver as over:
        found["connect"] = over.reason
    try:
        seat.check(first)  # told once is told for ever
        found["check"] = None
    except AttemptOver as over:
        found["check"] = over.reason

    signals.drain()
    second = seat.quorum(seat.agree(standing(fresh=True)))
    found["second"] = (second.grant, second.rank, second.size)
    channel = seat.connect(second)
    found["alone"] = (channel.size, channel.process_group, seat.connect(second) is channel)
    seat.finish(second, channel)
    return found


def _peer(rank: int, world: int, url: str, ready: Path, done: Path) -> None:
    """g1: seated, and declared dead before it connects. Its store stays, so that g0 waits for it in vain."""
    me = Rank(url, "g1", terms(), rank=rank, world=world)
    me.seat.quorum(me.seat.agree(standing(void=True)))
    wait_until(ready.exists)
    me.watch.close()
    wait_until(done.exists)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Iterator[list[dict[str, Any]]]:
    """What the two ranks of g0 found."""
    folder = tmp_path_factory.mktemp("seat")
    ready, done = folder / "ready", folder / "done"
    lighthouse = InThread(folder)
    try:
        with ThreadPoolExecutor() as pool:
            ranks = pool.submit(run_ranks, _group, 2, folder, lighthouse.url, ready)
            peer = pool.submit(run_ranks, _peer, 1, folder, lighthouse.url, ready, done)
            ranks.add_done_callback(lambda _: (ready.touch(), done.touch()))
            answers = ranks.result()
            peer.result()
        yield answers
    finally:
        lighthouse.stop()


def test_ranks_that_agree_go_on(found):
    assert [rank["agree"]["same"] for rank in found] == [GOOD, GOOD]


@pytest.mark.parametrize("name", ["lineage", "step", "void", "finished"])
def test_ranks_that_disagree_end_the_incarnation_on_every_rank(found, name):
    assert [rank["agree"][name] for rank in found] == [7, 7]


@pytest.mark.parametrize("name", ["drain", "fresh"])
def test_drain_or_broken_channel_of_one_rank_is_everybodys(found, name):
    assert [getattr(rank["agree"][name], name) for rank in found] == [True, True]


def test_attempt_is_over_for_every_rank_once_it_is_for_one(found):
    assert [rank["together"][0] for rank in found] == [None, None]
    assert found[0]["together"][1] == "another rank of this group was told that the attempt is over"
    assert found[1]["together"][1] == "told"


def test_every_rank_holds_the_same_grant_and_torchfts_rank(found):
    (grant, rank, size), other = (r["first"] for r in found)
    assert other == (grant, rank, size)
    assert (grant.names, size) == (("g0", "g1"), 2)
    assert grant.names[rank] == "g0"


def test_vote_is_the_same_on_every_rank_and_needs_them_all(found):
    assert [rank["votes"] for rank in found] == [[True, False], [True, False]]


def test_death_before_configure_leaves_it_on_every_rank(found):
    """Level-triggered: whoever looks later finds it too."""
    assert [rank["connect"] for rank in found] == [DiscardReason.PEER_LOST] * 2
    assert [rank["check"] for rank in found] == [DiscardReason.PEER_LOST] * 2


def test_next_quorum_goes_on_without_the_dead_group(found):
    first = found[0]["first"][0]
    for rank in found:
        grant, place, size = rank["second"]
        assert (grant.names, place, size) == (("g0",), 0, 1)
        assert grant.attempt > first.attempt
        assert grant.quorum_id > first.quorum_id
        assert rank["alone"] == (1, None, True)
