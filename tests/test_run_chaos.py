"""Whole scenarios, played and judged. The quick ones in every test run; the matrix is ``phalanx chaos run matrix``."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs import failpoints
from configs.words import Exit
from ops.chaos.play import Stage
from ops.chaos.reading import load
from ops.chaos.scenario import Fault, Scenario
from ops.chaos.schedule import schedule
from ops.console import Console
from ops.launch.requests import Requests
from ops.verdict.story import Invariant
from tests.support.far_field import why_not

LATER = pytest.mark.long
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def play(rig, tmp_path):
    """Plays some runs of a scenario on the rig's corpus; all must pass."""

    def make(
        scenario: Scenario,
        *,
        source: str,
        names: tuple[str, ...] = (),
        seed: int | None = None,
        folder="runs",
        passes: bool = True,
    ):
        config = rig.config("unused", steps=1000)
        data = {"training.dataset": "text", "training.dataset_path": config.training.dataset_path}
        keys = {**data, "training.vocab_size": 300, "training.workers": 0, "job.cache_folder": config.job.cache_folder}
        words = [word for key, value in keys.items() for word in (f"--{key}", str(value))]
        plans = schedule(scenario, source=source, seed=seed, overrides=words)
        said = io.StringIO()
        stage = Stage(
            tmp_path / folder, warm=rig.warm, console=Console(said), requests=Requests(), limit_s=scenario.limit_s
        )
        chosen = [plan for plan in plans if not names or plan.name in names]
        outcomes = stage.play(chosen, compare=scenario.compare, tell=lambda played: None)
        assert len(outcomes) == len(chosen)
        for outcome in outcomes:
            name = outcome.played.plan.name
            assert outcome.verdict.holds is passes, f"{name}: {outcome.verdict.text()}\n{said.getvalue()[-4000:]}"
            if scenario.compare:
                assert outcome.compared == outcome.steps > 0
            print(f"\n{name}: {outcome.steps} steps, {outcome.played.wall_s:.1f} s")
        return outcomes

    return make


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("pairs", ("lighthouse-with-a-group",)),
        pytest.param("pairs", (), marks=LATER),
        pytest.param("lighthouse", (), marks=LATER),
        pytest.param("network", (), marks=LATER),
        pytest.param("mtbf", (), marks=LATER),
        pytest.param("spot", (), marks=LATER),
    ],
)
def test_a_shipped_scenario_passes(play, name, runs):
    play(load(name), source=name, names=runs)


@LATER
@pytest.mark.timeout(900)
def test_the_scenario_with_hosts_passes(tmp_path):
    """As a command, which makes the secret that a run off loopback needs."""
    if reason := why_not():
        pytest.skip(reason)
    words = [sys.executable, "-m", "ops", "chaos", "run", "hosts", "--folder", str(tmp_path / "runs"), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == Exit.DONE, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_failpoint_of_the_matrix_passes(play):
    """Without the undisturbed run beside it, for the time that takes."""
    play(load("matrix").model_copy(update={"compare": False}), source="matrix", names=("reduce-kill",))


@LATER
@pytest.mark.timeout(1800)
def test_the_matrix_passes(play):
    play(load("matrix"), source="matrix")


FLIP = Fault(group="g1", at="optimizer", step=6, do="flip")


@LATER
def test_a_flipped_bit_of_the_state_is_found_by_the_verdict(play):
    """Nobody looks: both groups go on, with different weights."""
    scenario = load("random")
    keys = {**scenario.keys, "fault_tolerance.divergence_check": False}
    scenario = scenario.model_copy(update={"faults": (FLIP,), "compare": False, "keys": keys})
    (outcome,) = play(scenario, source="random", passes=False)
    first = outcome.verdict.violations[0]
    assert first.invariant is Invariant.ONE_DIGEST
    assert first.line.event["step"] == 7


@LATER
def test_a_flipped_bit_that_the_groups_find_breaks_no_promise(play):
    play(load("random").model_copy(update={"faults": (FLIP,)}), source="random")


GROUPS = ("g0", "g1", "any")
OUTSIDE = st.fixed_dictionaries(
    {
        "group": st.sampled_from(GROUPS),
        "step": st.integers(2, 40),
        "do": st.sampled_from(["kill", "stop", "drain"]),
        "together": st.booleans(),
    }
)
SHORT = st.fixed_dictionaries(
    {
        "target": st.just("lighthouse"),
        "step": st.integers(2, 40),
        "do": st.sampled_from(["kill", "stop"]),
        "seconds": st.sampled_from([0.3, 1.5]),
    }
)
INSIDE = st.fixed_dictionaries(
    {
        "group": st.sampled_from(GROUPS),
        "rank": st.integers(0, 1),
        "at": st.sampled_from([name for name in failpoints.NAMES if name not in ("build", "closing", "shutdown")]),
        "step": st.integers(2, 40),
        "do": st.sampled_from(["kill", "raise", "delay", "stop"]),
        "seconds": st.sampled_from([0.2, 3.0]),  # of a stop, too: nobody buries the last that holds the state
    }
)


@LATER
@pytest.mark.timeout(1800)
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(faults=st.lists(st.one_of(OUTSIDE, SHORT, INSIDE), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_no_faults_at_all_break_a_promise(play, faults, seed):
    """A stop from outside waits until nobody else is away: the last group that holds the state is never buried."""
    faults = [{**fault, "together": False} if fault["do"] == "stop" else fault for fault in faults]
    head = load("random").model_dump(exclude={"faults"})
    scenario = Scenario.model_validate({**head, "faults": faults})
    play(scenario, source="random", seed=seed, folder=f"runs-{abs(hash(str((faults, seed))))}")


@LATER
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_seeds_of_the_random_scenario_pass(play, seed):
    play(load("random"), source="random", seed=seed)
