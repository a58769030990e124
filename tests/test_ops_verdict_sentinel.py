"""The judge and states that differ: when the divergence sentinel excuses them."""

from __future__ import annotations

import pytest

from ops.verdict.judge import judge
from ops.verdict.story import Invariant, story_of
from tests.support.stories import find, good_run


def other_digest(logs):
    liar = find(logs, "g1", "commit", step=4)
    liar["digest"] = "another"
    return liar


def named(logs, *groups, later=0, heals=True):
    """The sentinel names ``groups`` in their logs, so many steps after the commit of step 4; they heal."""
    for group in groups:
        commit = find(logs, group, "commit", step=4)
        found = {"event": "divergence", "step": 4 + later, "groups": list(groups), "tensors": ["model.a"]}
        keys = ("t", "group", "incarnation")
        head = {key: commit[key] for key in keys}
        place = logs[group].index(commit) + 1
        if heals:
            heal = {"event": "heal", "step": 4, "sources": ["g1" if group == "g0" else "g0"], "bytes": 1}
            quorum = next(i for i, e in enumerate(logs[group]) if i >= place and e["event"] == "quorum")
            logs[group].insert(quorum + 1, head | heal)
        logs[group].insert(place, head | found)


@pytest.mark.parametrize(
    ("groups", "later", "holds"),
    [(["g1"], 0, True), (["g1"], 8, True), (["g1"], 9, False), (["g0"], 0, True), (["g0", "g1"], 0, False)],
)
def test_a_state_that_the_sentinel_named_in_time_may_differ(groups, later, holds):
    """But not if its holders all disown it and the run keeps it."""
    logs = good_run()
    other_digest(logs)
    named(logs, *groups, later=later)
    found = judge(story_of(logs)).violations
    assert {violation.invariant for violation in found} == (set() if holds else {Invariant.ONE_DIGEST}), found


def test_the_sentinel_is_no_excuse_where_nobody_took_another_state():
    logs = good_run()
    liar = other_digest(logs)
    named(logs, "g1", heals=False)
    (violation,) = judge(story_of(logs)).violations
    assert (violation.invariant, violation.line.event) == (Invariant.ONE_DIGEST, liar)
