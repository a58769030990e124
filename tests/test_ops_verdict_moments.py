"""The judge where the clocks of hosts differ: honest logs pass, and what the clocks cannot hide is found."""

from __future__ import annotations

import pytest

from ops.verdict.judge import judge
from ops.verdict.story import Invariant, story_of
from tests.support.stories import find, good_run

SKEWS = [0.02, 0.05, 0.1, 1.0, 3600.0, -0.02, -0.1, -1.0, -5.0]


def on_another_host(logs, *, ahead, writer="g1"):
    """The logs of a run whose ``writer`` has a clock that is so many seconds ahead."""
    for event in logs[writer]:
        event["t"] += ahead
        if "host" in event:
            event["host"] = "elsewhere"
    return logs


@pytest.mark.parametrize("ahead", SKEWS)
def test_an_honest_run_over_hosts_whose_clocks_differ_passes(ahead):
    assert judge(story_of(on_another_host(good_run(), ahead=ahead))).violations == ()


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 5.0])
def test_a_checkpoint_published_too_soon_is_found_on_any_clock_and_quoted_as_it_stands(ahead):
    logs = on_another_host(good_run(), ahead=ahead)
    liar = find(logs, "g1", "checkpoint", step=4)
    liar["t"] -= 3.0
    (violation,) = judge(story_of(logs)).violations
    assert violation.invariant is Invariant.PUBLISHED
    assert violation.as_json()["event"] is liar


def test_what_is_closer_than_the_clocks_are_known_is_no_violation():
    """g1 was told 0.2 s after the decision and had asked 0.4 s before: its clock may be 0.2 s off."""
    logs = on_another_host(good_run(), ahead=0.0)
    confirmed, saved = find(logs, "lighthouse", "confirmed", step=4), find(logs, "g1", "checkpoint", step=4)
    saved["t"] = confirmed["t"] - 0.05
    assert judge(story_of(logs)).holds
    for event in logs["g1"]:
        if event["event"] == "start":
            event["host"] = "h"
    (violation,) = judge(story_of(logs)).violations
    assert violation.invariant is Invariant.PUBLISHED


def test_a_restore_of_what_was_confirmed_later_is_found_by_the_order_of_the_lighthouse():
    logs = on_another_host(good_run(), ahead=100.0)
    later = find(logs, "lighthouse", "confirmed", step=6)
    liar = [e for e in logs["g1"] if e["event"] == "restore"][1]
    liar.update(step=6, lineage=later["lineage"])
    found = judge(story_of(logs)).violations
    assert any(violation.invariant is Invariant.RESUME and violation.line.quoted is liar for violation in found)
