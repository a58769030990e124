"""The plan: whoever is alive, a step is the same microbatches, each computed once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica_groups.plan import BatchShape, Plan, at_end, efficiency, plan

GROUPS = tuple(f"g{i}" for i in range(6))
SHAPE = BatchShape(microbatches=6, samples=4, seq_len=8)


def planned(cursor: int = 0, *, shape: BatchShape = SHAPE, participants=GROUPS[:2], healing=()) -> Plan:
    up_to_date = [g for g in participants if g not in healing]
    return plan(cursor=cursor, shape=shape, participants=participants, up_to_date=up_to_date)


def union(work: Plan) -> list[int]:
    return sorted(m for share in work.shares.values() for m in share)


@settings(max_examples=200, deadline=None)
@given(
    step=st.integers(0, 5),
    microbatches=st.integers(1, 9),
    samples=st.integers(1, 5),
    groups=st.integers(1, 6),
    healing=st.integers(0, 5),
)
def test_shares_of_a_step_are_exactly_its_microbatches_whoever_is_alive(step, microbatches, samples, groups, healing):
    shape = BatchShape(microbatches=microbatches, samples=samples, seq_len=8)
    participants = GROUPS[:groups]
    behind = participants[: min(healing, groups - 1)]
    work = planned(step * microbatches * samples, shape=shape, participants=participants, healing=behind)
    first = step * microbatches
    assert union(work) == list(range(first, first + microbatches))  # each once: no set
    assert work.first == first
    assert work.microbatches == microbatches
    assert work.samples == microbatches * samples
    assert work.planned_tokens == microbatches * samples * 8
    assert all(work.shares[g] == () for g in behind)
    assert tuple(work.shares) == participants


@given(groups=st.integers(1, 6), cursor=st.integers(0, 50))
def test_plan_is_a_pure_function_of_what_all_participants_know(groups, cursor):
    once, again = (planned(4 * cursor, participants=GROUPS[:groups]) for _ in range(2))
    assert once == again


def test_shares_go_round_in_rank_order():
    work = planned(participants=("g2", "g0"))
    assert work.shares == {"g2": (0, 2, 4), "g0": (1, 3, 5)}
    assert list(work.shares) == ["g2", "g0"]


def test_healing_participant_has_an_empty_share_and_the_others_take_it_over():
    work = planned(participants=("g0", "g1", "g2"), healing=("g1",))
    assert work.shares == {"g0": (0, 2, 4), "g1": (), "g2": (1, 3, 5)}


def test_more_groups_than_microbatches_leave_hot_spares():
    work = planned(shape=BatchShape(microbatches=2, samples=4, seq_len=8), participants=GROUPS[:4])
    assert work.shares == {"g0": (0,), "g1": (1,), "g2": (), "g3": ()}


def test_last_step_of_finite_data_is_short_and_keeps_its_planned_tokens():
    shape = BatchShape(microbatches=6, samples=4, seq_len=8, total=34)
    work = planned(24, shape=shape)  # 10 samples are left: two whole microbatches and half of a third
    assert work.shares == {"g0": (6, 8), "g1": (7,)}
    assert work.samples == 10
    assert work.planned_tokens == 6 * 4 * 8  # the true token count corrects it afterwards
    assert at_end(step=2, cursor=24 + work.samples, steps=99, shape=shape)


def test_nothing_is_planned_beyond_the_end_of_the_data():
    work = planned(48, shape=BatchShape(microbatches=6, samples=4, seq_len=8, total=34))
    assert work.shares == {"g0": (), "g1": ()}
    assert work.samples == 0


@pytest.mark.parametrize(("groups", "healing"), [(1, 0), (2, 0), (3, 0), (3, 1)])
def test_per_group_batch_grows_with_the_up_to_date_participants(groups, healing):
    shape = BatchShape(microbatches=6, samples=4, seq_len=8, per_group=2)
    participants = GROUPS[:groups]
    work = planned(40, shape=shape, participants=participants, healing=participants[:healing])
    workers = groups - healing
    assert [len(work.shares[g]) for g in participants] == [0] * healing + [2] * workers
    assert union(work) == list(range(10, 10 + 2 * workers))
    assert work.samples == 2 * workers * 4
    assert work.planned_tokens == 2 * workers * 4 * 8


def test_cursor_inside_a_microbatch_is_refused():
    with pytest.raises(ValueError, match="cursor 6 is not at the start"):
        planned(6)


def test_run_is_at_its_end_when_its_steps_or_its_data_are_used_up():
    finite = BatchShape(microbatches=6, samples=4, seq_len=8, total=34)
    assert not at_end(step=9, cursor=9 * 24, steps=10, shape=SHAPE)
    assert at_end(step=10, cursor=240, steps=10, shape=SHAPE)
    assert not at_end(step=1, cursor=24, steps=10, shape=finite)
    assert at_end(step=2, cursor=34, steps=10, shape=finite)


@pytest.mark.parametrize(("groups", "expected"), [(1, 1.0), (2, 1.0), (3, 1.0), (4, 0.75), (5, 0.6), (12, 0.5)])
def test_efficiency_is_the_share_of_time_nobody_waits(groups, expected):
    assert efficiency(microbatches=6, groups=groups) == pytest.approx(expected)
