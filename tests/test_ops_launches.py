"""Failures in a folder that was launched several times: what a death cost ends with the launch it was in."""

from __future__ import annotations

import pytest

from ops.recovery import recoveries
from ops.report import read_report, text_of
from tests.support.attempts import life, of
from tests.support.logs import confirmed, logs


def launch(t: float) -> dict:
    return {"t": t, "event": "launch", "groups": ["g0", "g1"]}


def end(t: float, group: str, *, code: int, incarnation: int = 1) -> dict:
    return {"t": t, "event": "exit", "group": group, "incarnation": incarnation, "code": code, "reason": f"exit {code}"}


def quorums(events: list[dict], number: int) -> list[dict]:
    """With a quorum id of their own, in which both sit."""
    seats = {"quorum_id": number, "participants": ["g0", "g1"]}
    return [{**e, **seats} if e["event"] == "quorum" else e for e in events]


def twice(*codes: int) -> dict[str, list[dict]]:
    """Both groups end with these codes at about 106, and are launched again at 160."""
    first = {g: quorums(life(began=100.2, ready=103.0, steps=range(1, 3)), 1) for g in ("g0", "g1")}
    second = {g: quorums(life(began=160.2, ready=163.0, steps=range(3, 5), incarnation=2), 9) for g in ("g0", "g1")}
    ends = [end(106.0 + n / 10, f"g{n}", code=code) for n, code in enumerate(codes)]
    return {
        "lighthouse": [confirmed(s) for s in range(1, 5)],
        "launcher": [launch(100.0), *ends, {"t": 106.5, "event": "exit", "group": None, "code": 7}, launch(160.0)],
        "g0": [of("g0", e) for e in first["g0"] + second["g0"]],
        "g1": [of("g1", e) for e in first["g1"] + second["g1"]],
    }


def test_what_comes_after_the_pause_between_two_launches_is_no_recovery():
    found = recoveries(logs(**twice(-9, -9)))
    assert [r.group for r in found] == ["g0", "g1"]
    for recovery in found:
        assert (recovery.stall_s, recovery.recovery_s, recovery.heal_sources) == (None, None, ())
        assert sum(recovery.parts_s.values()) < 1.0
    told = text_of(read_report(logs(**twice(-9, -9))))
    assert "did not come back in its launch" in told
    assert "next attempt after" not in told


@pytest.mark.parametrize("code", [2, 3, 5, 6])
def test_a_code_that_ends_the_run_is_no_death(code):
    told = twice(code, 75)
    assert recoveries(logs(**told)) == ()
    told["launcher"] = [e for e in told["launcher"] if e.get("group") != "g0"]
    told["g0"].insert(5, {"t": 106.0, "event": "exit", "group": "g0", "incarnation": 1, "code": code, "reason": "x"})
    assert recoveries(logs(**told)) == (), "nor where the group tells it itself"


def test_an_attempt_of_the_next_incarnation_of_everybody_is_no_survivors_wait():
    """All die within one launch, and come back."""
    told = twice(-9, -9)
    told["launcher"] = [e for e in told["launcher"] if e.get("t") not in (106.5, 160.0)]
    found = recoveries(logs(**told))
    assert [r.stall_s for r in found] == [None, None]
    assert all(r.recovery_s is not None and r.recovery_s > 50 for r in found)
