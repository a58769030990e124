"""``phalanx bench checkpoint``: the windows, and the figures out of event logs."""

from __future__ import annotations

import pytest

from ops.bench.checkpoint_command import figures, step_seconds, text_of
from ops.bench.windows import CYCLE, WAYS, WINDOW, measured, way_of
from tests.support.logs import commit

SECONDS = {"without": 1.0, "with": 1.05, "blocking": 1.5}


def run_of(steps: int, *, group: str = "g0"):
    """The commits of a run in which a step takes as long as its way of saving says."""
    t, events = 100.0, []
    for step in range(1, steps + 1):
        events.append(commit(step, {group: [0]}, t=t, group=group))
        t += SECONDS[way_of(step)]
    return events


def saves(steps, status: str = "saved"):
    told = {"event": "checkpoint", "group": "g0", "stall_seconds": 0.01, "seconds": 0.2, "bytes": 7, "status": status}
    return [told | {"step": step} for step in steps]


def test_each_cycle_has_a_window_of_each_way_and_begins_with_another():
    cycles = [[way_of(first + window * WINDOW) for window in range(3)] for first in range(0, 3 * CYCLE, CYCLE)]
    assert all(sorted(cycle) == sorted(WAYS) for cycle in cycles)
    assert {cycle[0] for cycle in cycles} == set(WAYS)
    assert {way_of(step) for step in range(WINDOW)} == {cycles[0][0]}


def test_the_first_cycle_and_the_first_step_of_a_window_are_not_measured():
    assert not any(measured(step) for step in range(CYCLE))
    assert [step for step in range(CYCLE, CYCLE + WINDOW + 2) if not measured(step)] == [CYCLE, CYCLE + WINDOW]


def test_a_step_is_the_time_from_its_commit_to_the_next_one_of_the_same_group():
    events = [event for event in run_of(2 * CYCLE + 1) if event["step"] != CYCLE + 3]  # its two neighbours do not count
    found = step_seconds([*events, *run_of(2 * CYCLE, group="g1")])
    for way in WAYS:
        (times,) = found[way].values()
        assert times == pytest.approx([SECONDS[way]] * (WINDOW - (3 if way == way_of(CYCLE) else 1)))


def test_figures_compare_medians_and_count_what_was_saved():
    turns = [step for step in range(CYCLE, 3 * CYCLE) if way_of(step) == "with" and measured(step)]
    told = saves(turns[:7]) + saves(turns[7:], "skipped") + saves([1, CYCLE, 3 * CYCLE + 1])
    found = figures([*run_of(3 * CYCLE + 1), *told])
    assert found["overhead_ratio"] == pytest.approx(0.05)
    assert found["blocking_overhead_ratio"] == pytest.approx(0.5)
    assert found["overhead_ratio_by_cycle"] == {
        "median": pytest.approx(0.05),
        "min": pytest.approx(0.05),
        "max": pytest.approx(0.05),
        "n": 2,
    }
    assert (found["effective_interval_steps"], found["skipped_turns"]) == (2.0, 7)
    assert (found["step_s"]["n"], found["stall_s"]["n"], found["bytes"]) == (14, 7, 7)
    assert "+5.0% (single cycles +5.0% to +5.0%); one in 2.00 steps saved, 7 turns skipped" in text_of(found)


def test_what_was_not_measured_is_none():
    found = figures(run_of(CYCLE))
    assert [found[key] for key in ("step_s", "overhead_ratio", "effective_interval_steps", "bytes")] == [None] * 4
    assert "not measured" in text_of(found)
