"""The learning rate of step s is a closed form of s, so nothing can make it late, early or stale."""

from __future__ import annotations

import math

import pytest

from trainer.schedule import Schedule

SHAPES = {
    "linear": lambda x: 1 - x,
    "sqrt": lambda x: 1 - math.sqrt(x),
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
}


def schedule(**changes) -> Schedule:
    base = {"base": 3e-3, "steps": 50, "warmup": 10, "decay_ratio": 0.4, "decay_type": "cosine", "min_factor": 0.1}
    return Schedule(**{**base, **changes})


@pytest.mark.parametrize("decay", SHAPES)
@pytest.mark.parametrize("min_factor", [0.0, 0.1])
def test_every_step_of_warmup_stable_decay(decay, min_factor):
    made = schedule(decay_type=decay, min_factor=min_factor)
    found = [made.at(s) for s in range(50)]
    warmup = [3e-3 * (s + 1) / 10 for s in range(10)]
    stable = [3e-3] * 21
    falling = [3e-3 * (min_factor + (1 - min_factor) * SHAPES[decay]((i + 1) / 20)) for i in range(19)]
    assert found == pytest.approx(warmup + stable + falling, rel=1e-12)


@pytest.mark.parametrize("decay", SHAPES)
def test_without_a_decay_ratio_all_steps_after_warmup_decay(decay):
    made = schedule(decay_type=decay, decay_ratio=None, min_factor=0.0)
    found = [made.at(s) for s in range(10, 50)]
    assert found == pytest.approx([3e-3 * SHAPES[decay](i / 40) for i in range(40)], rel=1e-12)


@pytest.mark.parametrize("joined", [7, 15, 33])
def test_rate_does_not_depend_on_when_a_group_joined(joined):
    """Warmup 10, then 40 steps of cosine: who computes from a later step on sees the rates of who was always there."""
    always = schedule(decay_ratio=None)
    history = [always.at(s) for s in range(50)]
    assert [schedule(decay_ratio=None).at(s) for s in range(joined, 50)] == history[joined:]


def test_rate_of_a_step_is_the_same_however_often_it_is_asked():
    made = schedule()
    assert [made.at(12) for _ in range(3)] == [made.at(12)] * 3
    assert made == schedule()


def test_first_update_already_moves_and_the_last_one_still_does():
    made = schedule(min_factor=0.0)
    assert all(made.at(s) > 0 for s in range(50))
    assert made.at(8) < made.at(9) == made.at(10) == 3e-3


def test_decay_and_warmup_never_overlap():
    made = schedule(decay_ratio=1.0, decay_type="linear", min_factor=0.0)
    assert made.decay_steps == 40
    assert made.at(9) == made.at(10) == 3e-3
    assert made.at(11) == pytest.approx(3e-3 * (1 - 1 / 40))


@pytest.mark.parametrize("ratio", [0.0, None])
def test_no_warmup_and_no_decay_is_constant(ratio):
    made = schedule(warmup=0 if ratio is not None else 50, decay_ratio=ratio)
    assert made.at(50) == 3e-3
    if ratio is not None:
        assert {made.at(s) for s in range(50)} == {3e-3}


@pytest.mark.parametrize("decay", SHAPES)
def test_beyond_its_steps_the_rate_stays_at_its_floor(decay):
    made = schedule(decay_type=decay)
    assert made.at(50) == pytest.approx(3e-4)
    assert made.at(500) == pytest.approx(3e-4)
