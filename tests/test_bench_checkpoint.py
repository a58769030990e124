"""``phalanx bench checkpoint``: the figures out of event logs."""

from __future__ import annotations

import pytest

from ops.bench.checkpoint import figures, step_seconds, text_of


def commit(step: int, t: float, group: str = "g0"):
    return {"event": "commit", "group": group, "step": step, "t": t}


def test_a_step_is_the_time_between_two_commits_of_one_group_after_the_first_ones():
    events = [commit(step, 10.0 + 0.5 * step) for step in (*range(1, 9), 10, 11)]
    assert step_seconds([*events, commit(7, 99.0, "g1")]) == [0.5] * 4


def test_figures_compare_medians_and_count_what_was_saved():
    def save(status: str):
        return {"status": status, "stall_seconds": 0.01, "seconds": 0.2, "bytes": 7}

    measured = {"without": [1.0, 1.0, 3.0], "with": [1.05], "blocking": [1.5]}
    found = figures(measured, [save("saved"), save("skipped"), save("saved")], steps=3)
    assert found["overhead_ratio"] == pytest.approx(0.05)
    assert found["blocking_overhead_ratio"] == pytest.approx(0.5)
    assert found["effective_interval_steps"] == 1.5
    assert (found["step_s"]["n"], found["stall_s"]["n"], found["bytes"]) == (3, 2, 7)
    assert "one in 1.50 steps saved" in text_of(found)


def test_what_was_not_measured_is_none():
    found = figures({"without": [], "with": [1.0], "blocking": []}, [], steps=9)
    assert [found[key] for key in ("step_s", "overhead_ratio", "effective_interval_steps", "bytes")] == [None] * 4
    assert "not measured" in text_of(found)
