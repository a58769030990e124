"""The judge against logs that lie in what follows from a step, from the end, or from what another line tells."""

from __future__ import annotations

import dataclasses

import pytest

from configs.dump import to_toml
from configs.load import load
from ops.verdict.judge import judge
from ops.verdict.story import Invariant, read_story, story_of
from tests.support.stories import find, good_run, qid
from trainer.schedule import Schedule, schedule_of

TENTHS = Schedule(base=1.0, steps=1000, warmup=10, decay_ratio=None, decay_type="linear", min_factor=0.0)
"""The schedule of the good run."""


def verdict(logs):
    return judge(dataclasses.replace(story_of(logs), schedule=TENTHS))


def commits(logs, step):
    return [find(logs, group, "commit", step=step) for group in ("g0", "g1")]


def inserted(logs, writer, after, **event):
    """A line of the same writer and moment behind another."""
    new = {key: after[key] for key in ("t", "group", "incarnation")} | event
    logs[writer].insert(logs[writer].index(after) + 1, new)
    return new


# ---- one lie each: takes the logs, changes one thing, returns the event that the judge must point at ----------------


def another_learning_rate(logs):
    for commit in commits(logs, 4):
        commit["lr"] = 0.5
    return commits(logs, 4)[0]


def skipped_with_gradients(logs):
    for commit in commits(logs, 2):
        commit["outcome"] = "skipped"
    return commits(logs, 2)[0]


def updated_without_gradients(logs):
    for commit in commits(logs, 2):
        commit["grad_norm"] = None
    return commits(logs, 2)[0]


def no_such_outcome(logs):
    for commit in commits(logs, 2):
        commit["outcome"] = "banana"
    return commits(logs, 2)[0]


def a_step_that_moves_nothing(logs):
    for commit in commits(logs, 2):
        commit["digest"] = "digest of 1"
    return commits(logs, 2)[0]


def ends_at_another_step(logs):
    liar = find(logs, "lighthouse", "end")
    liar.update(step=4, lineage=find(logs, "lighthouse", "confirmed", step=4)["lineage"])
    return liar


def ends_in_another_lineage(logs):
    liar = find(logs, "lighthouse", "end")
    liar["lineage"] = "6:1.1"
    return liar


def rolled_back_after_the_end(logs):
    to = find(logs, "lighthouse", "confirmed", step=4)["lineage"]
    return inserted(logs, "lighthouse", find(logs, "lighthouse", "end"), event="rollback", to=to, quorum_id=qid(90))


def done_without_an_end(logs):
    logs["lighthouse"].remove(find(logs, "lighthouse", "end"))
    return logs["launcher"][-1]


def orphaned_though_confirmed(logs):
    commit = find(logs, "g1", "commit", step=1)
    return inserted(logs, "g1", commit, event="orphaned", step=1, lineage=commit["lineage"])


def discards_what_it_commits(logs):
    commit = find(logs, "g1", "commit", step=2)
    return inserted(logs, "g1", commit, event="discard", step=2, attempt=commit["attempt"], reason="peer_lost")


def commits_what_it_discards(logs):
    commit = find(logs, "g1", "commit", step=2)
    quorum = next(e for e in logs["g1"] if e["event"] == "quorum" and e["attempt"] == commit["attempt"])
    inserted(logs, "g1", quorum, event="discard", step=1, attempt=commit["attempt"], reason="peer_lost")
    return commit


def heals_from_nobody(logs):
    liar = find(logs, "g1", "heal")
    liar["sources"] = ["g7"]
    return liar


def heals_from_itself(logs):
    liar = find(logs, "g1", "heal")
    liar["sources"] = ["g0", "g1"]
    return liar


def confirmed_of_others(logs):
    liar = find(logs, "lighthouse", "confirmed", step=4)
    liar["participants"] = ["g7"]
    return liar


def a_line_of_another_group(logs):
    liar = find(logs, "g1", "commit", step=4)
    liar["group"] = "g0"
    return liar


def another_config(logs):
    liar = find(logs, "g1", "start", incarnation=2)
    liar["config_digest"] = "other"
    return liar


def ends_with_another_code(logs):
    liar = find(logs, "g1", "exit", incarnation=3)
    liar["code"] = 6
    return liar


LIES = [
    (Invariant.CLOCKS, another_learning_rate),
    (Invariant.CLOCKS, skipped_with_gradients),
    (Invariant.CLOCKS, updated_without_gradients),
    (Invariant.CLOCKS, no_such_outcome),
    (Invariant.ONE_DIGEST, a_step_that_moves_nothing),
    (Invariant.ONE_HISTORY, ends_in_another_lineage),
    (Invariant.ONE_HISTORY, done_without_an_end),
    (Invariant.ONE_HISTORY, orphaned_though_confirmed),
    (Invariant.CLOCKS, discards_what_it_commits),
    (Invariant.CLOCKS, commits_what_it_discards),
    (Invariant.CLOCKS, heals_from_nobody),
    (Invariant.CLOCKS, heals_from_itself),
    (Invariant.TOLD_ALIKE, confirmed_of_others),
    (Invariant.TOLD_ALIKE, a_line_of_another_group),
    (Invariant.TOLD_ALIKE, another_config),
    (Invariant.TOLD_ALIKE, ends_with_another_code),
    (Invariant.ONE_HISTORY, ends_at_another_step),
    (Invariant.ONE_HISTORY, rolled_back_after_the_end),
]


@pytest.mark.parametrize(("invariant", "lie"), LIES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_one_lie_is_found_and_pointed_at_first(invariant, lie):
    logs = good_run()
    assert verdict(logs).holds
    culprit = lie(logs)
    found = verdict(logs).violations
    assert found
    assert (found[0].invariant, found[0].line.event) == (invariant, culprit), verdict(logs).text()


# ---- and what is honest ---------------------------------------------------------------------------------------------


def test_a_skipped_step_has_no_gradient_norm():
    logs = good_run()
    for commit in commits(logs, 2):
        commit.update(outcome="skipped", grad_norm=None)
    assert verdict(logs).holds


def test_a_later_launch_may_have_another_schedule():
    logs = good_run()
    another_learning_rate(logs)
    logs["launcher"].append(logs["launcher"][0] | {"t": find(logs, "g0", "commit", step=6)["t"]})
    assert verdict(logs).holds


def test_a_lighthouse_of_a_later_launch_may_admit_another_config():
    logs = good_run()
    join = find(logs, "lighthouse", "join", group="g1", incarnation=2)
    place = logs["lighthouse"].index(join)
    logs["lighthouse"].insert(place, {"t": join["t"], "event": "lighthouse", "group": None, "incarnation": None})
    assert verdict(logs).holds
    for event in [*logs["g0"], *logs["g1"]]:
        if event["event"] == "start" and event["incarnation"] > 1:
            event["config_digest"] = "other"
    assert verdict(logs).holds


def test_a_signal_may_end_who_has_said_its_code():
    logs = good_run()
    find(logs, "launcher", "exit", group="g1", incarnation=3)["code"] = -9
    assert not [v for v in verdict(logs).violations if v.invariant is Invariant.TOLD_ALIKE]


def test_groups_without_a_launcher_are_judged_but_for_their_ends():
    logs = good_run()
    del logs["launcher"]
    found = verdict(logs)
    assert found.holds
    assert "could not be checked" in found.text()
    assert len(found.as_json()["notes"]) == 1


def test_the_schedule_is_that_of_the_run_folder(tmp_path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "g0.jsonl").touch()
    assert read_story(tmp_path).schedule is None
    (tmp_path / "config.toml").write_text("no config [")
    assert read_story(tmp_path).schedule is None
    config = load("debug")
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read_story(tmp_path).schedule == schedule_of(config)
