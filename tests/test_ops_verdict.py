"""The judge against logs that tell the truth, and against logs that lie in one place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.words import Exit, ExitRequest, Lineage
from ops.verdict.judge import judge
from ops.verdict.limits import Limits
from ops.verdict.story import Invariant, read_story, story_of
from tests.support.stories import find, good_run, qid

WANTED = Limits(
    steps=6, strikes=3, digests=True, digest="digest of 6", rollbacks=1, restarts=3, discards=1, stall_s=5.0
)


def verdict(logs, limits=WANTED):
    return judge(story_of(logs), limits)


def test_a_good_run_passes():
    assert verdict(good_run()).violations == ()
    assert judge(story_of(good_run())).as_json() == {"verdict": "pass", "violations": [], "violated": 0}


# ---- one lie each --------------------------------------------------------------------------------------------------
#
# Each takes the logs, changes one thing, and returns the event that the judge must point at (None: something is gone).


def dropped_share(logs):
    for group in ("g0", "g1"):
        liar = find(logs, group, "commit", step=2)
        liar["shares"] = {**liar["shares"], "g1": liar["shares"]["g1"][1:]}
    return find(logs, "g0", "commit", step=2)


def told_another_share(logs):
    liar = find(logs, "g1", "commit", step=2)
    liar["shares"] = {"g0": liar["shares"]["g1"], "g1": liar["shares"]["g0"]}
    return liar


def share_while_healing(logs):
    for group in ("g0", "g1"):
        liar = find(logs, group, "commit", step=4)
        liar["shares"] = {"g0": [12, 13], "g1": [14, 15]}
    return find(logs, "g0", "commit", step=4)


def lost_commit(logs):
    """g0 was alone."""
    logs["g0"].remove(find(logs, "g0", "commit", step=3))
    return find(logs, "lighthouse", "confirmed", step=3)


def gap_in_the_chain(logs):
    for group in ("g0", "g1"):
        logs[group].remove(find(logs, group, "commit", step=2))
    logs["lighthouse"].remove(find(logs, "lighthouse", "confirmed", step=2))
    return find(logs, "lighthouse", "confirmed", step=3)


def no_rollback(logs):
    logs["lighthouse"].remove(find(logs, "lighthouse", "rollback"))
    return [e for e in logs["lighthouse"] if e["event"] == "confirmed" and e["step"] == 5][1]


def behind_the_fence(logs):
    find(logs, "lighthouse", "rollback")["quorum_id"] = qid(50)
    return [e for e in logs["lighthouse"] if e["event"] == "confirmed" and e["step"] == 5][1]


def stands_on_another(logs):
    quorum = [e for e in logs["g0"] if e["event"] == "quorum" and e["step"] == 5][-1]
    for writer in ("lighthouse", "g0", "g1"):
        for event in logs[writer]:
            if event["event"] == "quorum" and event["attempt"] == quorum["attempt"]:
                event["lineage"] = str(Lineage(5, qid(5)))
    return find(logs, "g0", "commit", step=6)


def other_digest(logs):
    liar = find(logs, "g1", "commit", step=4)
    liar["digest"] = "another"
    return liar


def cursor_jumps(logs):
    for group in ("g0", "g1"):
        for event in logs[group]:
            if event["event"] == "commit" and event["step"] >= 4:
                event["cursor"] += 8
    return find(logs, "g0", "commit", step=4)


def stale_learning_rate(logs):
    liar = find(logs, "g1", "commit", step=4)
    liar["lr"] = 0.1
    return liar


def discard_moves_the_step(logs):
    liar = find(logs, "g0", "discard")
    liar["step"] += 1
    return liar


def commits_unhealed(logs):
    logs["g1"].remove(find(logs, "g1", "heal"))
    return find(logs, "g1", "commit", step=4)


def another_healer(logs):
    liar = find(logs, "g0", "commit", step=4)
    liar["healing"] = []
    return liar


def step_and_lineage_apart(logs):
    liar = find(logs, "g1", "checkpoint", step=4)
    liar["step"] = 3
    return liar


def an_end_that_nobody_saw(logs):
    logs["launcher"].remove(find(logs, "launcher", "exit", group="g1", incarnation=3))
    return find(logs, "g1", "start", incarnation=3)


def another_epoch(logs):
    liar = logs["lighthouse"][-4]
    assert liar["event"] == "quorum"
    liar["epoch"] += 1
    return liar


def told_to_restore_another(logs):
    liar = [e for e in logs["lighthouse"] if e["event"] == "quorum" and e.get("restore")][1]
    liar["restore"] = str(Lineage(3, qid(4)))
    return find(logs, "g0", "restore", step=4)


def attempt_twice(logs):
    quorums = [e for e in logs["lighthouse"] if e["event"] == "quorum"]
    logs["lighthouse"].insert(logs["lighthouse"].index(quorums[1]) + 1, dict(quorums[1]))
    return [e for e in logs["lighthouse"] if e["event"] == "quorum"][2]


def two_sets_of_one_id(logs):
    liar = [e for e in logs["g1"] if e["event"] == "quorum"][-1]
    liar["participants"] = ["g1"]
    return liar


def granted_by_nobody(logs):
    liar = logs["g0"][-2]  # the closing quorum
    liar["attempt"] = qid(99)
    return liar


def incarnation_repeats(logs):
    twin = dict(find(logs, "lighthouse", "join", group="g1", incarnation=3))
    logs["lighthouse"].append(twin)
    return twin


def left_out(logs):
    logs["lighthouse"].remove(find(logs, "lighthouse", "departure", group="g1", incarnation=1))
    return find(logs, "lighthouse", "quorum", participants=["g0"])


def succeeded_unburied(logs):
    logs["lighthouse"].remove(find(logs, "lighthouse", "departure", group="g0", incarnation=1))
    return [e for e in logs["lighthouse"] if e["event"] == "quorum"][-3]


def seated_after_burial(logs):
    burial = find(logs, "lighthouse", "departure", group="g1", incarnation=3)
    burial["t"] = find(logs, "lighthouse", "rollback")["t"]
    return [e for e in logs["lighthouse"] if e["event"] == "quorum"][-3]


def confirmed_by_the_dead(logs):
    """g0 alone made step 3; were it buried before that is confirmed, nobody could have asked with it."""
    logs["lighthouse"].insert(
        0, find(logs, "lighthouse", "departure", group="g0") | {"t": find(logs, "g0", "commit", step=3)["t"] - 0.01}
    )
    return find(logs, "lighthouse", "confirmed", step=3)


def published_by_the_dead(logs):
    """g1.1 died in the third attempt, before step 3 was confirmed."""
    liar = find(logs, "g0", "checkpoint", step=3) | {"group": "g1", "incarnation": 1}
    logs["g1"].append(liar)
    return liar


def published_unconfirmed(logs):
    liar = find(logs, "g1", "checkpoint", step=4)
    liar["lineage"] = str(Lineage(4, qid(77)))
    return liar


def restores_another_branch(logs):
    liar = [e for e in logs["g1"] if e["event"] == "restore"][1]
    liar["lineage"] = str(Lineage(4, qid(77)))
    return liar


def dies_of_nothing(logs):
    logs["launcher"].remove(find(logs, "launcher", "fault", group="g1"))
    return find(logs, "launcher", "exit", group="g1")


LIES = [
    (Invariant.EXACTLY_ONCE, dropped_share),
    (Invariant.EXACTLY_ONCE, told_another_share),
    (Invariant.EXACTLY_ONCE, share_while_healing),
    (Invariant.ONE_HISTORY, no_rollback),
    (Invariant.ONE_HISTORY, behind_the_fence),
    (Invariant.ONE_DIGEST, other_digest),
    (Invariant.CLOCKS, cursor_jumps),
    (Invariant.CLOCKS, stale_learning_rate),
    (Invariant.CLOCKS, discard_moves_the_step),
    (Invariant.CLOCKS, commits_unhealed),
    (Invariant.CLOCKS, another_healer),
    (Invariant.CLOCKS, step_and_lineage_apart),
    (Invariant.QUORUM_IDS, another_epoch),
    (Invariant.RESUME, told_to_restore_another),
    (Invariant.EXITS, an_end_that_nobody_saw),
    (Invariant.QUORUM_IDS, attempt_twice),
    (Invariant.QUORUM_IDS, two_sets_of_one_id),
    (Invariant.QUORUM_IDS, granted_by_nobody),
    (Invariant.QUORUM_IDS, incarnation_repeats),
    (Invariant.SEATED_OR_BURIED, left_out),
    (Invariant.SEATED_OR_BURIED, succeeded_unburied),
    (Invariant.BURIED, seated_after_burial),
    (Invariant.BURIED, published_by_the_dead),
    (Invariant.PUBLISHED, published_unconfirmed),
    (Invariant.EXITS, dies_of_nothing),
]


@pytest.mark.parametrize(("invariant", "lie"), LIES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_one_lie_is_found_and_pointed_at(invariant, lie):
    logs = good_run()
    culprit = lie(logs)
    found = judge(story_of(logs)).violations
    assert {violation.invariant for violation in found} == {invariant}, judge(story_of(logs)).text()
    assert found[0].line is not None
    assert found[0].line.event is culprit


@pytest.mark.parametrize(
    ("invariant", "lie"),
    [
        (Invariant.EXACTLY_ONCE, lost_commit),
        (Invariant.ONE_HISTORY, gap_in_the_chain),
        (Invariant.ONE_HISTORY, stands_on_another),
        (Invariant.BURIED, confirmed_by_the_dead),
        (Invariant.RESUME, restores_another_branch),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_a_lie_that_makes_others_wrong_is_pointed_at_too(invariant, lie):
    logs = good_run()
    culprit = lie(logs)
    found = [violation for violation in judge(story_of(logs)).violations if violation.invariant is invariant]
    assert any(violation.line is not None and violation.line.event is culprit for violation in found)


def test_a_resume_may_be_the_checkpoint_before_the_last_and_none_older():
    assert judge(story_of(good_run(back_to=3))).holds
    old = judge(story_of(good_run(back_to=2))).violations
    assert {violation.invariant for violation in old} == {Invariant.RESUME}
    assert old[0].line.event["event"] == "restore"
    assert judge(story_of(good_run(back_to=2)), Limits(shared_disk=False)).holds


# ---- files ---------------------------------------------------------------------------------------------------------


def write(root: Path, logs) -> None:
    (root / "events").mkdir()
    for writer, events in logs.items():
        text = "".join(json.dumps(event) + "\n" for event in events)
        (root / "events" / f"{writer}.jsonl").write_text("\n" + text)


def test_a_violation_names_file_line_and_event(tmp_path):
    logs = good_run()
    liar = other_digest(logs)
    write(tmp_path, logs)
    found = judge(read_story(tmp_path))
    (violation,) = found.as_json()["violations"]
    number = logs["g1"].index(liar) + 2  # lines count from 1, and the first is empty
    assert violation["where"] == f"events/g1.jsonl:{number}"
    assert violation["event"] == liar
    assert violation["invariant"] == "one_digest"
    assert f"events/g1.jsonl:{number}: 4:100.5 is another here" in found.text()


def test_the_first_violated_line_comes_first():
    logs = good_run()
    stale_learning_rate(logs)  # step 4
    first = told_another_share(logs)  # step 2
    found = judge(story_of(logs)).violations
    assert found[0].line.event is first
    assert len(found) == 2


def test_a_folder_without_logs(tmp_path):
    with pytest.raises(ExitRequest) as caught:
        read_story(tmp_path)
    assert caught.value.code is Exit.BAD_CONFIG
