"""The price of joins, from the phases of attempts."""

import pytest

from trainer.join_price import JoinPrice

QUIET = {"quorum": 0.01, "reduce": 0.02, "compute": 1.0}


def test_waits_above_the_usual_ones_are_the_price():
    meter = JoinPrice()
    for extra in (0.0, 0.01, 0.02):
        assert meter.of({**QUIET, "quorum": 0.01 + extra}, healing=False, behind=False) == 0.0
    joined = {"quorum": 0.05, "heal": 0.1, "reduce": 0.3, "compute": 5.0}
    assert meter.of(joined, healing=True, behind=False) == pytest.approx(0.45 - 0.04)


def test_a_heal_that_computing_hides_is_free():
    meter = JoinPrice()
    meter.of(QUIET, healing=False, behind=False)
    assert meter.of({**QUIET, "reduce": 0.01}, healing=True, behind=False) == 0.0


def test_an_attempt_with_a_heal_is_no_usual_one():
    meter = JoinPrice()
    meter.of(QUIET, healing=False, behind=False)
    for _ in range(9):
        assert meter.of({**QUIET, "reduce": 1.02}, healing=True, behind=False) == pytest.approx(1.0)


def test_the_healer_and_a_first_attempt_have_none():
    meter = JoinPrice()
    assert meter.of(QUIET, healing=True, behind=True) is None
    assert meter.of(QUIET, healing=True, behind=False) is None
