"""What a judge asks beyond the history: the scenario's limits, and a cause for every end."""

from __future__ import annotations

import json

import pytest

from ops.verdict.judge import judge
from ops.verdict.limits import Limits
from ops.verdict.story import Invariant, story_of
from tests.support.stories import find, good_run

# ---- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(steps=7), "ends at step 6 of 7"),
        (Limits(exit=75), "ended with 0, expected 75"),
        (Limits(digest="other"), "the undisturbed run's is other"),
        (Limits(failpoints=("g0:reduce#0:kill",)), "the fault g0:reduce#0:kill never fired"),
        (Limits(failpoints=("g1:save_write@16#0:full",)), "step 16 was not g1's (without a step,"),
        (Limits(strikes=4), "3 of 4 faults"),
        (Limits(discards=0), "1 attempt was discarded, at most 0"),
        (Limits(rollbacks=0), "1 rollback, at most 0"),
        (Limits(restarts=2), "3 restarts of groups, at most 2"),
        (Limits(stall_s=0.1), "stall of"),
        (Limits(recovery_s=0.1), "recovery of"),
    ],
    ids=str,
)
def test_a_limit_that_is_not_kept_is_told(limits, why):
    found = judge(story_of(good_run()), limits).violations
    assert found
    assert all(violation.invariant is Invariant.LIMITS for violation in found)
    assert why in found[0].why


def test_a_digest_that_was_wanted_and_is_missing():
    logs = good_run()
    for group in ("g0", "g1"):
        find(logs, group, "commit", step=2)["digest"] = None
    assert judge(story_of(logs)).holds
    assert "has no digest" in judge(story_of(logs), Limits(digests=True)).violations[0].why


# ---- exits ---------------------------------------------------------------------------------------------------------


def last_death(logs, **fields):
    """Another end of g1.1, with no fault of its own."""
    logs["launcher"].remove(find(logs, "launcher", "fault", group="g1"))
    find(logs, "launcher", "exit", group="g1").update(fields)
    return logs


def test_an_end_with_code_7_is_explained_by_a_fault_elsewhere_and_one_with_1_is_not():
    fault = {"t": 1000.5, "event": "fault", "group": "g0", "incarnation": 1, "failpoint": "g0:data", "action": "delay"}
    for code, explained in ((7, True), (1, False), (-9, False)):
        logs = last_death(good_run(), code=code)
        assert not judge(story_of(logs)).holds, "no fault at all"
        logs["g0"].insert(0, fault)
        assert judge(story_of(logs)).holds is explained


def test_a_kill_of_what_was_buried_as_hung_is_explained_by_the_fault_that_hung_it():
    logs = last_death(good_run())
    logs["g0"].insert(0, {"t": 1000.5, "event": "fault", "group": None, "incarnation": None, "action": "stop"})
    assert not judge(story_of(logs)).holds
    gone = find(logs, "lighthouse", "departure", group="g1")
    gone.update(cause="hung", t=find(logs, "launcher", "exit", group="g1")["t"] - 0.01)
    assert judge(story_of(logs)).holds


def test_a_launcher_that_was_asked_to_stop_explains_what_it_kills():
    logs = last_death(good_run())
    logs["launcher"].insert(0, {"t": 1000.5, "event": "notice", "source": "sigterm", "deadline_s": 1})
    assert judge(story_of(logs)).holds


def test_a_lighthouse_that_dies_with_the_news_of_a_burial_is_no_liar():
    """The burial was stored, its event not yet written: the next epoch's quorum is without it, and it is dead."""
    logs = good_run()
    logs["lighthouse"].remove(find(logs, "lighthouse", "departure", group="g1", incarnation=1))
    assert not judge(story_of(logs)).holds
    alone = find(logs, "lighthouse", "quorum", participants=["g0"])["attempt"]
    text = json.dumps(logs)
    for number in range(alone, alone + 20):  # the next epoch, with the same running numbers
        text = text.replace(str(number), str(number + (1 << 32)))
        text = text.replace(f'100.{number & 0xFFFF}"', f'101.{number & 0xFFFF}"')
    logs = json.loads(text)
    for event in (event for events in logs.values() for event in events if event["event"] == "quorum"):
        event["epoch"] = event["attempt"] >> 32
    text = json.dumps(logs)
    assert judge(story_of(json.loads(text))).holds, judge(story_of(json.loads(text))).text()
