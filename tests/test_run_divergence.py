"""A bit flips in one group's parameters: found at the next attempt, healed or rolled back, and the end is the same."""

from __future__ import annotations

from typing import Any

import pytest

from configs.words import Exit
from tests.support.rig import Run, holds

STEPS = 16


def divergences(run: Run) -> list[dict[str, Any]]:
    return [event for group in run.logs.groups for event in run.events(group, "divergence")]


def same_end(run: Run, alone: Run) -> None:
    holds(run, steps=STEPS)
    assert run.series("digest") == alone.series("digest")


@pytest.fixture(scope="module")
def alone(rig) -> Run:
    return rig.run("divergence-alone", groups=1, ranks=1, steps=STEPS)


def test_the_odd_group_of_three_is_found_at_once_and_heals(rig, alone):
    run = rig.run("odd", groups=3, ranks=1, steps=STEPS, chaos__failpoints=["g1:agree@7:flip"])
    assert run.code == Exit.DONE, run.said
    told = divergences(run)
    assert {tuple(event["groups"]) for event in told} == {("g1",)}, told
    assert {event["step"] for event in told} == {7}, "at the attempt after the flip"
    assert all(len(event["tensors"]) == 1 and event["tensors"][0].startswith("model.") for event in told), told
    (heal,) = run.events("g1", "heal")
    assert heal["step"] == 7
    assert not run.events("lighthouse", "rollback")
    assert not run.events("launcher", "restart"), "its processes live on"
    same_end(run, alone)


def test_of_two_that_differ_both_go_back_to_what_they_agreed_on(rig, alone):
    run = rig.run("two", groups=2, ranks=1, steps=STEPS, chaos__failpoints=["g0:agree@9:flip"])
    assert run.code == Exit.DONE, run.said
    told = divergences(run)
    assert {tuple(event["groups"]) for event in told} == {("g0", "g1")}, told
    (rollback,) = run.events("lighthouse", "rollback")
    assert rollback["reason"].startswith("the groups differ at 9:"), rollback
    agreed = int(rollback["to"].split(":")[0])
    assert agreed < 9, "step 9 itself was never published"
    restored = [event["step"] for group in ("g0", "g1") for event in run.events(group, "restore", "heal")]
    assert agreed in restored
    same_end(run, alone)


@pytest.mark.long
def test_with_ranks_that_hold_shards_and_a_flip_between_vote_and_update(rig):
    """The commit of the flipped group is wrong in its own log; nothing of it is published or confirmed by others."""
    alone = rig.run("divergence-alone-2", groups=1, ranks=2, steps=STEPS)
    run = rig.run("shards", groups=3, ranks=2, steps=STEPS, chaos__failpoints=["g2:optimizer@5#1:flip"])
    assert run.code == Exit.DONE, run.said
    assert {tuple(event["groups"]) for event in divergences(run)} == {("g2",)}
    holds(run, steps=STEPS)
    usual = alone.series("digest")
    for step, records in run.commits().items():
        digests = {record["group"]: record["digest"] for record in records}
        if step == 6:
            assert digests.pop("g2") != usual[step]
        assert set(digests.values()) == {usual[step]}, step


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fp32", "per_group"])
def test_groups_that_round_alike_are_not_accused(rig, mode):
    keys = {"fault_tolerance__reduction": "fp32"}
    if mode == "per_group":
        keys["fault_tolerance__batch"] = "per_group"
        keys["training__global_batch_size"] = 12
    run = rig.run(f"quiet-{mode}", steps=40, chaos__failpoints=["g1:backward@12:kill", "g0:reduce@25:kill"], **keys)
    assert run.code == Exit.DONE, run.said
    assert not divergences(run)
