"""On what evidence the gateway judges: silence of everybody at once, and its own pauses, are evidence of nothing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from configs.protocol import Pulse, RankPulse
from configs.words import DepartureCause
from lighthouse.judging import Judge
from lighthouse.members import Life
from lighthouse.state import Participant, Stored
from lighthouse.waiting import Waiting
from tests.support.lighthouse import terms

G0, G1, G2 = (Participant(f"g{i}", 1) for i in range(3))
TERMS = terms(failure_detection_s=2.0)
WORKS = Pulse(ranks=(RankPulse(attempt=7, phase="compute", age_s=0.1),), usual_s=0.5)


class Court:
    """A judge, its evidence, and whom it has buried."""

    def __init__(self):
        self.lives = {who: Life(who=who, pulse=WORKS, streams=1) for who in (G0, G1)}
        self.buried = []
        last = SimpleNamespace(up_to_date=("g0", "g1"), attempt=7)
        self.quorums = SimpleNamespace(last=last, over=None, failures=0, waiting=Waiting(lambda: None))
        self.judge = Judge(
            lives=self.lives,
            living=lambda: frozenset(self.lives) - {who for who, _ in self.buried},
            state=lambda: Stored(terms=TERMS, known=(G0, G1)),
            quorums=self.quorums,
            bury=lambda who, cause, reason: self.buried.append((who, cause)),
            publish=lambda: None,
            clock=lambda: 0.0,
        )

    def look(self, now, *heard, paused=False):
        for who in heard:
            self.lives[who].pulse_at, self.lives[who].stale = now, False
        self.judge.look(TERMS, now=now, paused=paused)


@pytest.fixture
def court():
    court = Court()
    court.look(0.0, G0, G1)
    return court


def test_one_that_falls_silent_expires_while_another_is_heard(court):
    for now in (0.5, 1.0, 1.5, 1.9):
        court.look(now, G0)
    assert court.buried == []
    court.look(2.1, G0)
    assert court.buried == [(G1, DepartureCause.EXPIRED)]


def test_nobody_is_judged_while_nobody_is_heard_nor_before_everybody_could_send_again(court):
    for now in (1.0, 2.0, 3.0, 30.0):
        court.look(now)
    court.look(30.2, G0)  # the path is back: its stream was the first
    assert court.buried == []
    court.look(32.0, G0)
    assert court.buried == []
    court.look(32.3, G0)
    assert court.buried == [(G1, DepartureCause.EXPIRED)]


def test_nobody_is_judged_after_a_pause_of_this_process_before_everybody_could_send_again(court):
    court.look(9.0, G0, paused=True)
    court.look(10.5, G0)
    assert court.buried == []
    court.look(11.2, G0)
    assert court.buried == [(G1, DepartureCause.EXPIRED)]


@pytest.mark.parametrize("paused", [False, True])
def test_what_one_did_before_the_silence_is_not_held_against_it(court, paused):
    """The other is heard first, and has waited for as long as nobody was heard."""
    now = 9.0
    if not paused:
        court.look(1.5)
    court.lives[G0].pulse = Pulse(ranks=(RankPulse(attempt=7, phase="quorum", age_s=8.9),), usual_s=0.5)
    court.look(now, G0, paused=paused)
    court.look(now + 0.5, G0)
    assert court.buried == []
    court.look(now + 1.0, G0, G1)  # and it still computes
    assert court.buried == [(G1, DepartureCause.HUNG)]


def test_before_its_first_grant_one_of_those_it_remembers_is_left(court):
    court.quorums.last = None
    court.lives[G2] = Life(who=G2, pulse=WORKS, streams=1)
    for now in (1.0, 2.1, 3.0):
        court.look(now, G2)
    assert len(court.buried) == 1


def test_the_youngest_is_the_last_that_joined_not_the_last_that_changed_its_phase(court):
    for who, joined, since in ((G0, 1.0, 9.0), (G1, 5.0, 6.0)):
        court.lives[who] = dataclasses.replace(court.lives[who], joined=joined, since=since)
    court.quorums.failures = 2
    court.look(0.1, G0, G1)
    assert court.buried == [(G1, DepartureCause.HUNG)]
