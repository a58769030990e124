"""What a group's pulse says of its own times: the gateway judges it by them."""

from __future__ import annotations

import time

from replica_groups.vitals import Vitals
from tests.support.training import rig, world_of_one


def test_the_usual_time_is_the_longest_of_the_recent_attempts():
    vitals = Vitals(world=1)
    assert vitals.pulse().usual_s is None
    for seconds in (0.2, 0.9, 0.3):
        vitals.attempt_took(seconds, step=1, tokens=8)
    assert vitals.pulse().usual_s == 0.9
    for _ in range(16):
        vitals.attempt_took(0.1, step=2, tokens=16)
    assert vitals.pulse().usual_s == 0.1


def test_an_attempt_with_a_heal_is_no_usual_one():
    vitals = Vitals(world=1)
    vitals.attempt_took(None, step=7, tokens=64)
    pulse = vitals.pulse()
    assert (pulse.usual_s, pulse.step, pulse.tokens) == (None, 7, 64)


def test_silence_of_a_rank_grows_until_it_is_heard():
    now = 100.0
    vitals = Vitals(world=2, clock=lambda: now)
    now = 103.0
    (_, other) = vitals.pulse().ranks
    assert (other.phase, other.silent_s) == ("starting", 3.0)
    vitals.hear(1, {"vitals": [4, "compute", 0.5]})
    now = 103.25
    (_, other) = vitals.pulse().ranks
    assert (other.attempt, other.phase, other.age_s, other.silent_s) == (4, "compute", 0.75, 0.25)


def test_the_wait_for_a_quorum_is_not_this_groups_own_time(monkeypatch):
    with world_of_one():
        made = rig()
        told = []
        monkeypatch.setattr(made.parts.vitals, "attempt_took", lambda seconds, **more: told.append(seconds))
        asked, wait = made.seat.quorum, 0.3

        def slow_quorum(*arguments, **more):
            time.sleep(wait)
            return asked(*arguments, **more)

        monkeypatch.setattr(made.seat, "quorum", slow_quorum)
        made.attempt()
        (commit,) = made.named("commit")
        assert told[0] < commit["seconds"] - wait * 0.9
