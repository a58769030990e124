"""Whose turn it is to save: each due step once, by one participant, without a word between them."""

from __future__ import annotations

import pytest

from checkpointing.turns import Commit, Policy, decide_turn, time_slice


def savers(policy: Policy, *, step: int, size: int = 3, holders: tuple[int, ...] | None = None, now: float = 0.0):
    """The participants that save this commit."""
    held = tuple(range(size)) if holders is None else holders
    commits = [
        Commit(step=step, rank=rank, size=size, holds=rank in held, holders=len(held), now=now) for rank in range(size)
    ]
    return [commit.rank for commit in commits if decide_turn(commit, policy)[0]]


@pytest.mark.parametrize("size", [2, 3])
def test_each_due_step_is_saved_by_one_and_all_take_turns(size):
    policy = Policy(interval=4, groups=size)
    turns = [savers(policy, step=step, size=size) for step in range(1, 25)]
    assert [bool(turn) for turn in turns] == [step % 4 == 0 for step in range(1, 25)]
    assert all(len(turn) <= 1 for turn in turns)
    assert {rank for turn in turns for rank in turn} == set(range(size))


def test_by_the_clock_each_slice_has_one_save_by_its_owner():
    policy = Policy(interval_s=10, groups=2)
    saved = []
    last: dict[int, int | None] = {0: None, 1: None}
    for step in range(1, 121):  # a commit a second, for two minutes
        now = 1000.0 + step
        for rank in (0, 1):
            commit = Commit(step=step, rank=rank, size=2, holds=True, holders=2, now=now)
            if decide_turn(commit, policy, last_slice=last[rank])[0]:
                last[rank] = time_slice(now, policy)
                saved.append((now, rank))
    slices = [time_slice(now, policy) for now, _ in saved]
    assert slices == sorted(set(slices)) == list(range(100, 113))
    assert [rank for _, rank in saved] == [part % 2 for part in slices]


def test_with_both_a_step_must_be_due_and_the_slice_unsaved():
    policy = Policy(interval=5, interval_s=10)
    assert savers(policy, step=7, size=1, now=1000) == []
    assert savers(policy, step=10, size=1, now=1000) == [0]
    again = Commit(step=15, rank=0, size=1, holds=True, holders=1, now=1009)
    assert decide_turn(again, policy, last_slice=100) == (False, "saved already in these 10 s")


@pytest.mark.parametrize("policy", [Policy(interval=100, groups=2), Policy(interval_s=1e6, groups=2)], ids=str)
def test_the_last_replica_saves_every_step_until_another_has_healed(policy):
    assert savers(policy, step=7, size=1) == [0], "alone in the quorum"
    assert savers(policy, step=7, size=2, holders=(1,)) == [1], "the other one heals"
    assert savers(Policy(interval=100, groups=2), step=8, size=2) == [], "both hold it again"


def test_a_run_of_one_group_has_no_last_replica():
    assert savers(Policy(interval=100, groups=1), step=7, size=1) == []


def test_the_first_step_is_saved_where_asked():
    assert savers(Policy(interval=100, first_step=True), step=1) != []
    assert savers(Policy(interval=100), step=1) == []
