"""The judge against logs with lines that no run writes, and with such as a killed writer leaves."""

from __future__ import annotations

import json

import pytest

from ops.verdict.judge import judge
from ops.verdict.story import Invariant, read_story, story_of
from tests.support.stories import find, good_run

WRONG = [
    ("g1", "quorum", {"step": "x"}),
    ("lighthouse", "quorum", {"participants": 5}),
    ("lighthouse", "quorum", {"attempt": "banana"}),
    ("lighthouse", "quorum", {"epoch": "x"}),
    ("lighthouse", "quorum", {"restore": ["x"]}),
    ("launcher", "exit", {"code": "zero"}),
    ("g1", "commit", {"samples": "x"}),
    ("g1", "commit", {"cursor": "x"}),
    ("g1", "commit", {"digest": ["x"]}),
    ("g1", "commit", {"shares": {"g0": "abc"}}),
    ("g1", "commit", {"t": "noon"}),
    ("g1", "commit", {"t": None}),
    ("g1", "commit", {"event": 5}),
]


@pytest.mark.parametrize(("writer", "name", "change"), WRONG, ids=lambda x: str(x))
def test_a_field_of_a_wrong_type_is_named(writer, name, change):
    logs = good_run()
    liar = find(logs, writer, name)
    liar |= change
    found = judge(story_of(logs)).violations
    broken = [violation for violation in found if violation.invariant is Invariant.READABLE]
    assert [violation.line.event for violation in broken] == [liar]
    assert broken[0].line.where == f"events/{writer}.jsonl:{logs[writer].index(liar) + 1}"


@pytest.mark.parametrize("field", ["samples", "cursor", "shares", "participants", "step", "attempt", "tokens"])
def test_a_field_that_is_null_is_no_crash(field):
    logs = good_run()
    for group in ("g0", "g1"):
        find(logs, group, "commit", step=4)[field] = None
    assert not judge(story_of(logs)).holds or field == "tokens"


def test_an_incarnation_of_nobody_is_named():
    logs = good_run()
    liar = find(logs, "lighthouse", "join")
    del liar["incarnation"]
    assert judge(story_of(logs)).violations[0].line.event is liar


def written(root, logs):
    """The logs as files; each as its lines."""
    (root / "events").mkdir()
    lines = {writer: [json.dumps(event, separators=(",", ":")) + "\n" for event in logs[writer]] for writer in logs}
    for writer in logs:
        rewrite(root, writer, lines[writer])
    return lines


def rewrite(root, writer, lines):
    (root / "events" / f"{writer}.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("damage", ["GARBAGE\n", '{"t":1}\n', "[1,2]\n", '{"t":100\n', "\xff\n"])
@pytest.mark.parametrize("writer", ["g1", "lighthouse", "launcher"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path, writer, damage):
    lines = written(tmp_path, good_run())[writer]
    assert judge(read_story(tmp_path)).holds
    rewrite(tmp_path, writer, [*lines[:3], damage, *lines[3:]])
    (violation,) = judge(read_story(tmp_path)).violations
    assert (violation.invariant, violation.line.where) == (Invariant.READABLE, f"events/{writer}.jsonl:4")


@pytest.mark.parametrize(
    ("end", "holds"), [('{"t":1001.5,"eve', True), ('{"t', True), ("GARBAGE", False), ("[1]\n", False)]
)
def test_a_torn_last_line_is_honest(tmp_path, end, holds):
    lines = written(tmp_path, good_run())["g1"]
    rewrite(tmp_path, "g1", [*lines, end])
    assert judge(read_story(tmp_path)).holds is holds


def test_a_torn_line_that_the_next_incarnation_has_ended_is_honest(tmp_path):
    logs = good_run()
    lines = written(tmp_path, logs)["g1"]
    place = logs["g1"].index(find(logs, "g1", "start", incarnation=2))
    rewrite(tmp_path, "g1", [*lines[:place], '{"t":1001.5,"eve\n', *lines[place:]])
    assert judge(read_story(tmp_path)).holds
    rewrite(tmp_path, "g1", [*lines[: place + 1], '{"t":1001.5,"eve\n', *lines[place + 1 :]])
    assert not judge(read_story(tmp_path)).holds
