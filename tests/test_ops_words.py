"""How summaries and lines are worded: numbers, names of groups, what a launch saved."""

from __future__ import annotations

import pytest

from ops.counting import counted
from ops.launch.summary import summarise
from ops.live import Narrator
from ops.report import read_report
from ops.report_html import page
from ops.verdict.judge import judge
from ops.verdict.limits import Limits
from ops.verdict.story import story_of
from tests.support.logs import commit, logs, write
from tests.support.stories import good_run
from tests.test_ops_reports import story


@pytest.mark.parametrize(("number", "told"), [(0, "0 deaths"), (1, "1 death"), (2, "2 deaths")])
def test_one_is_not_many(number, told):
    assert counted(number, "death") == told


def test_a_divergence_names_its_groups_as_everything_else_does():
    narrator = Narrator(steps=9, every=1)
    narrator.take("g0", {"t": 1.0, "event": "divergence", "groups": ["g0", "g1"]})
    line = narrator.take("g0", commit(2, {"g0": [0], "g1": [1]}))
    assert "divergence of g0+g1" in line.text


def test_a_page_and_a_verdict_count_one_as_one():
    html = page(read_report(logs(**story())), name="x")
    assert "<b>1</b>death<" in html
    assert "<b>1</b>attempt discarded<" in html
    assert judge(story_of(good_run()), Limits(steps=7)).text().startswith("verdict: FAIL, 1 violation; the first:")


def test_a_launch_that_saved_nothing_does_not_say_that_there_is_nothing(tmp_path):
    told = story()
    told["g0"].append({"t": 5.2, "event": "checkpoint", "step": 5, "status": "saved"})
    for writer, events in told.items():
        write(tmp_path, writer, events)
    refused = summarise(tmp_path, code=6, reason="g0: another training's", since=100.0)
    assert "checkpoints none saved by this launch" in refused.text
    assert "checkpoints 1 saved" in summarise(tmp_path, code=0, reason="done", since=0.0).text
