"""Where the time goes: every second of a rank belongs to exactly one phase."""

from __future__ import annotations

import pytest

from trainer.phases import Phase, Phases


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_phases_sum_to_wall_time(clock):
    phases = Phases(clock=clock)
    taken: list[dict[str, float]] = []
    order = [Phase.QUORUM, Phase.HEAL, Phase.DATA, Phase.COMPUTE, Phase.DATA, Phase.COMPUTE, Phase.REDUCE, Phase.VOTE]
    for number in range(5):
        for seconds, phase in enumerate(order, start=1):
            clock.now += seconds / 8
            phases.enter(phase)
        clock.now += 0.5
        taken.append(phases.take(next_phase=Phase.OTHER, discarded=number % 2 == 1))
    assert sum(sum(t.values()) for t in taken) == pytest.approx(clock.now - 100.0, abs=1e-9)


def test_time_before_a_phase_is_entered_belongs_to_the_one_before(clock):
    phases = Phases(clock=clock)
    clock.now += 3
    phases.enter(Phase.COMPUTE)
    clock.now += 2
    phases.enter(Phase.REDUCE)
    clock.now += 1
    phases.enter(Phase.COMPUTE)
    clock.now += 4
    assert phases.take(next_phase=Phase.OTHER) == {"starting": 3, "compute": 6, "reduce": 1}


def test_discarded_attempt_is_one_phase(clock):
    phases = Phases(clock=clock)
    phases.enter(Phase.QUORUM)
    clock.now += 3
    phases.enter(Phase.COMPUTE)
    clock.now += 2
    assert phases.take(next_phase=Phase.OTHER, discarded=True) == {"starting": 0, "discarded": 5}


def test_what_came_before_an_attempt_is_not_discarded_with_it(clock):
    phases = Phases(clock=clock)
    clock.now += 8
    phases.enter(Phase.REHEARSE)
    clock.now += 4
    phases.enter(Phase.QUORUM)
    clock.now += 1
    phases.enter(Phase.COMPUTE)
    clock.now += 2
    taken = phases.take(next_phase=Phase.CHECKPOINT_STALL, discarded=True)
    assert taken == {"starting": 8, "rehearse": 4, "discarded": 3}
    clock.now += 0.5
    phases.enter(Phase.QUORUM)
    clock.now += 1
    assert phases.take(next_phase=Phase.OTHER, discarded=True) == {"checkpoint_stall": 0.5, "discarded": 1}


def test_nothing_is_counted_twice_over_takes(clock):
    phases = Phases(clock=clock)
    clock.now += 3
    phases.take(next_phase=Phase.CHECKPOINT_STALL)
    assert phases.current is Phase.CHECKPOINT_STALL
    clock.now += 1
    assert phases.take(next_phase=Phase.OTHER) == {"checkpoint_stall": 1}


def test_names_are_the_keys_of_the_report():
    keys = "starting rehearse quorum heal data compute reduce vote optimizer checkpoint_stall discarded waiting"
    assert {p.value for p in Phase} == {*keys.split(), "validation", "draining", "other"}
