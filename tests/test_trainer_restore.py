"""What a group brings to a start, and the state it takes from disk or the seed when nobody current is alive."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from checkpointing.errors import CheckpointError, NothingThere
from checkpointing.state import Clocks
from configs.protocol import Kind, Offer
from configs.words import SCRATCH, Lineage
from tests.support.grants import grant, quorum_id, seating
from tests.support.states import clocks
from tests.support.training import Rig, bits, rig, world_of_one

CURRENT = Lineage(12, quorum_id(3))
HELD = clocks(12)


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def test_disk_is_not_looked_at_while_the_state_is_good():
    made = rig(good=True)
    assert made.state.on_disk() == Offer()
    assert made.disk.told == []


def test_rank_0_of_a_void_group_says_what_it_can_bring():
    found = (SimpleNamespace(lineage=CURRENT), SimpleNamespace(lineage=Lineage(9, 9)))
    for rank, expected in ((0, (CURRENT, Lineage(9, 9))), (1, ())):
        made = rig(good=False, rank=rank)
        made.disk.found = found
        assert made.state.on_disk() == Offer(disk=expected)


def test_what_only_another_group_can_have_is_no_end_yet():
    def nothing():
        raise NothingThere("step 4 is not here")

    made = rig(good=False)
    made.disk.offered = nothing
    assert made.state.on_disk() == Offer(unmet="step 4 is not here")


def on_disk(made: Rig, state: Clocks, value: float) -> None:
    path = Path(state.lineage.folder)
    made.disk.found = (SimpleNamespace(lineage=state.lineage, path=path, verified=True),)
    made.disk.held[path] = ({name: torch.full_like(t, value) for name, t in made.state.tensors.items()}, state)


@pytest.mark.parametrize("before", [True, False], ids=["good", "void"])
def test_restore_takes_the_state_that_is_fixed_for_all(before):
    made = rig(good=before)
    on_disk(made, HELD, 0.5)
    during: list[bool] = []
    made.disk.during = lambda: during.append(made.state.void)
    told = grant("g0", current=CURRENT, restore=CURRENT)
    made.state.take(seating(told))
    assert during == [True]
    assert made.state.void  # until all ranks have it
    made.state.taken(seating(told))
    assert (made.state.void, made.state.clocks) == (False, HELD)
    assert all((t == 0.5).all() for t in bits_as_tensors(made))
    (event,) = made.named("restore")
    assert (event["step"], event["source"], event["lineage"]) == (12, "disk", str(CURRENT))


def bits_as_tensors(made: Rig) -> list[torch.Tensor]:
    return [torch.frombuffer(bytearray(b), dtype=torch.float32) for b in bits(made.state.tensors).values()]


def test_restore_from_scratch_is_the_seeds_state():
    made = rig()
    seeded = bits(made.state.tensors)
    made.attempt(2)
    assert bits(made.state.tensors) != seeded
    told = grant("g0", current=SCRATCH, restore=SCRATCH)
    made.state.take(seating(told))
    made.state.taken(seating(told))
    assert bits(made.state.tensors) == seeded
    assert made.state.clocks == made.state.scratch
    assert made.state.unconfirmed is None
    assert made.named("restore")[0]["source"] == "scratch"


def test_restore_of_what_this_disk_does_not_hold_ends_with_6():
    made = rig()
    with pytest.raises(CheckpointError):
        made.state.take(seating(grant("g0", current=CURRENT, restore=CURRENT)))


def test_what_was_rolled_back_is_set_aside_once_another_state_is_held():
    made = rig()
    fence = Lineage(10, quorum_id(4))
    told = seating(dataclasses.replace(grant("g0", current=CURRENT, restore=CURRENT), fences=(fence,)))
    made.state.settle(told.grant)
    with pytest.raises(CheckpointError):
        made.state.take(told)
    assert made.disk.told == [], "where nothing can be loaded all stays as it was"
    on_disk(made, HELD, 0.5)
    made.state.take(told)
    assert made.disk.told == []
    made.state.taken(told)
    assert made.disk.told == [("fence", fence)]


def test_restore_at_the_end_of_a_run_is_good_at_once():
    """A closing quorum takes no state together: there is nothing to train."""
    made = rig(good=False)
    on_disk(made, HELD, 0.5)
    made.state.restore_if_asked(grant("g0", current=CURRENT, restore=CURRENT, kind=Kind.CLOSING))
    assert not made.state.void


def test_nothing_is_restored_unasked():
    made = rig()
    on_disk(made, HELD, 0.5)
    before = bits(made.state.tensors)
    made.state.take(seating(grant("g0")))
    assert bits(made.state.tensors) == before
