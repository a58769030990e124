"""When the demo strikes, and whom."""

from __future__ import annotations

from configs.digest import digest
from configs.load import load
from configs.shapes import global_batch, microbatches
from ops.chaos.demo import strikes, undisturbed
from ops.chaos.driver import ChaosDriver, Seen, Strike, due
from tests.support.logs import commit

PLAN = (Strike(group="g1", step=4), Strike(group="g0", step=6))
BOTH = {"g0": [0], "g1": [1]}


class Battle:
    """A driver and what it struck."""

    def __init__(self, *, can: bool = True) -> None:
        self.struck: list[tuple[str, int]] = []
        self.can = can
        self.driver = ChaosDriver(PLAN, strike=self._strike)

    def _strike(self, strike: Strike, step: int) -> bool:
        if self.can:
            self.struck.append((strike.group, step))
        return self.can

    def commit(self, writer: str, step: int, shares: dict, incarnation: int = 1) -> None:
        self.driver.take(writer, commit(step, shares, incarnation=incarnation))


def test_a_strike_waits_for_its_step_and_is_made_once():
    battle = Battle()
    for step in range(1, 6):
        battle.commit("g0", step, BOTH)
        battle.commit("g1", step, BOTH)
    assert battle.struck == [("g1", 4)]


def test_the_next_strike_waits_until_the_victim_works_again():
    battle = Battle()
    battle.commit("g1", 3, BOTH)
    battle.commit("g0", 4, BOTH)
    battle.commit("g1", 4, BOTH)  # the victim's record of the step before its death
    for step in (6, 7):
        battle.commit("g0", step, {"g0": [0, 1], "g1": []})
        battle.commit("g1", step, {"g0": [0, 1], "g1": []}, incarnation=2)  # healing: no share yet
    assert battle.struck == [("g1", 4)]
    battle.commit("g0", 8, BOTH)
    assert battle.struck == [("g1", 4)]
    battle.commit("g1", 8, BOTH, incarnation=2)
    assert battle.struck == [("g1", 4), ("g0", 8)]


def test_a_strike_that_could_not_be_made_is_tried_again():
    battle = Battle(can=False)
    battle.commit("g0", 4, BOTH)
    battle.can = True
    battle.commit("g0", 5, BOTH)
    assert battle.struck == [("g1", 5)]


def test_due_says_why():
    assert due((), Seen())[1] == "nothing left to do"
    assert "at step 4" in due(PLAN, Seen(step=3))[1]
    assert "no share" in due(PLAN, Seen(step=4, sharing=frozenset({"g0"})))[1]
    assert "waiting for g0" in due(PLAN, Seen(step=4, away=frozenset({("g0", 1)})))[1]


def test_the_demo_kills_g1_at_one_third_and_g0_at_two_thirds():
    demo = load("demo")
    assert strikes(demo) == (Strike(group="g1", step=20), Strike(group="g0", step=40))
    assert strikes(load("debug")) == ()


def test_the_undisturbed_run_is_the_same_training_alone():
    demo = load("demo", ["--training.global_batch_size", "-1"])
    alone = undisturbed(demo)
    assert (global_batch(alone), microbatches(alone)) == (global_batch(demo), microbatches(demo))
    assert digest(alone) == digest(demo)
    assert (alone.launch.groups, alone.fault_tolerance.min_groups, strikes(alone)) == (1, 1, ())
    assert alone.job.dump_folder.endswith("/undisturbed")
