"""``phalanx chaos``: list, show, judge, and what run refuses before anything starts."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ops.__main__ import main
from ops.chaos.play import Outcome, Played
from ops.chaos.reading import load
from ops.chaos.scenario import shipped
from ops.chaos.schedule import schedule
from tests.support.logs import write
from tests.support.stories import find, good_run


def call(capfd, *words: str) -> tuple[int, dict]:
    code = main([*words, "--json"])
    return code, json.loads(capfd.readouterr().out)


def tell(folder, logs) -> None:
    for writer, events in logs.items():
        write(folder, writer, events)


def test_list_names_every_scenario_with_what_it_proves(capfd):
    code, data = call(capfd, "chaos", "list")
    assert code == 0
    assert data["scenarios"] == {name: load(name).about for name in shipped()}


def test_show_is_the_plan_of_a_seed(capfd):
    code, data = call(capfd, "chaos", "show", "random", "--seed", "5")
    assert code == 0
    (plan,) = schedule(load("random"), source="random", seed=5)
    assert (data["seed"], data["cases"][0]["faults"]) == (5, list(plan.faults))
    _, other = call(capfd, "chaos", "show", "random", "--seed", "6")
    assert other["cases"] != data["cases"]


def test_judge_passes_a_good_run_and_points_at_a_lie(tmp_path, capfd):
    tell(tmp_path / "good", good_run())
    assert call(capfd, "chaos", "judge", str(tmp_path / "good")) == (
        0,
        {"exit": 0, "verdict": "pass", "violations": [], "violated": 0, "limits_of": None},
    )
    logs = good_run()
    liar = find(logs, "g1", "commit", step=4)
    liar["digest"] = "another"
    tell(tmp_path / "bad", logs)
    code, data = call(capfd, "chaos", "judge", str(tmp_path / "bad"))
    assert (code, data["verdict"], data["violated"]) == (1, "fail", 1)
    (violation,) = data["violations"]
    assert violation["where"] == f"events/g1.jsonl:{logs['g1'].index(liar) + 1}"
    assert (violation["invariant"], violation["event"]) == ("one_digest", liar)
    assert main(["chaos", "judge", str(tmp_path / "bad")]) == 1
    assert "verdict: FAIL" in capfd.readouterr().err


def test_judge_of_no_run(tmp_path, capfd):
    assert call(capfd, "chaos", "judge", str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("matrx",), "did you mean matrix"),
        (("pairs", "--case", "none"), "no such run of pairs: none"),
        (("matrix", "--case", "reduce-kil", "--case", "x"), "reduce-kil (did you mean reduce-kill?), x (see"),
        (("pairs", "--training.stpes", "4"), "did you mean training.steps"),
        (("pairs", "--folder", "."), "expected an empty folder"),
    ],
)
def test_run_refuses_what_it_does_not_understand_and_starts_nothing(words, why, capfd):
    code, data = call(capfd, "chaos", "run", *words)
    assert code == 2
    assert why in data["error"]


def outcome(folder, logs, *, in_time=True) -> Outcome:
    tell(folder, logs)
    (plan,) = schedule(load("mtbf"), source="mtbf", overrides=["--training.steps", "6"])
    played = Played(plan=plan, folder=folder, code=0, reason="done", wall_s=3.0, in_time=in_time)
    return Outcome(played=played, verdict=played.judge({6: "digest of 6"}), steps=6, compared=1)


def test_an_outcome_says_where_in_which_run(tmp_path):
    logs = good_run()
    assert outcome(tmp_path / "a", logs).as_json()["verdict"] == "pass"
    for group in ("g0", "g1"):
        find(logs, group, "commit", step=6)["digest"] = "another"
    found = outcome(tmp_path / "b", logs).as_json()
    assert found["verdict"] == "fail"
    assert "not the state of the undisturbed run" in found["violations"][0]["why"]
    assert found["violations"][0]["where"].startswith("events/g")
    (plan, *_) = schedule(load("pairs"), source="pairs")
    played = Played(plan=plan, folder=tmp_path / "b", code=0, reason="done", wall_s=3.0, in_time=True)
    found = Outcome(played=played, verdict=played.judge({}), steps=6, compared=1).as_json()
    assert found["violations"][-1]["where"] == "healer-dies/events"


def test_a_run_that_was_not_over_in_time_has_failed(tmp_path, capfd):
    (violation,) = outcome(tmp_path, good_run(), in_time=False).as_json()["violations"]
    assert "not over after 3 s" in violation["why"]
    _, data = call(capfd, "chaos", "judge", str(tmp_path))
    assert data["violations"] == [violation]


def test_judge_comes_to_the_verdict_of_the_run_with_the_limits_of_its_scenario(tmp_path, capfd):
    """A fault that never came, a stall, another state than the undisturbed run's: nothing that the logs alone tell."""
    logs = good_run()
    tell(tmp_path, logs)
    (plan,) = schedule(load("mtbf"), source="mtbf", overrides=["--training.steps", "6"])
    limits = dataclasses.replace(plan.limits, failpoints=("g1:save_write@3#0:kill",), stall_s=0.01)
    played = Played(
        plan=dataclasses.replace(plan, limits=limits), folder=tmp_path, code=0, reason="done", wall_s=3.0, in_time=True
    )
    verdict = played.judge({6: "another"}, scenario="mtbf", seed=4)
    assert len(verdict.violations) > 2
    code, data = call(capfd, "chaos", "judge", str(tmp_path))
    assert (code, data["limits_of"]) == (1, {"scenario": "mtbf", "run": "run", "seed": 4})
    assert data["violations"] == verdict.as_json()["violations"]
    (tmp_path / "scenario.json").unlink()
    assert call(capfd, "chaos", "judge", str(tmp_path))[0] == 0
    assert main(["chaos", "judge", str(tmp_path)]) == 0
    assert "no run of a scenario" in capfd.readouterr().out


def test_limits_that_cannot_be_read_are_not_left_out_in_silence(tmp_path, capfd):
    tell(tmp_path, good_run())
    (tmp_path / "scenario.json").write_text('{"scenario": "mtbf"')
    code, data = call(capfd, "chaos", "judge", str(tmp_path))
    assert (code, "scenario.json" in data["error"]) == (2, True)
