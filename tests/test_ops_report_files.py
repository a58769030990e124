"""The report as its user gets it: tables, a drawing, a page; of damaged logs, of a run without an end, at a price."""

from __future__ import annotations

import ast
import html.parser
import json
import re
import struct
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ops.__main__ import main
from ops.goodput import Span
from ops.history import read_logs
from ops.ratios import DEFINITIONS, read_ratios
from ops.recovery import quantiles, recoveries
from ops.report import read_report
from ops.report_charts import COLUMNS, columns, losses
from ops.report_text import full_text
from tests.support.attempts import CHAIN, LAUNCH, discard, leaving, life, of, quorum, start, step
from tests.support.logs import commit, logs, write
from tests.test_ops_reports import story

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(tmp_path):
    """A run folder: g1 is killed at 106.5 by its launcher's word, and comes back with a share at 112."""
    folder = tmp_path / "a <run> & more"
    alone = [
        quorum(106.9, attempt=4, seconds=0.2, quorum_id=2),
        step(3, t=107.8, attempt=4, participants=["g0"], shares={"g0": [6, 7]}),
    ]
    g0 = [
        *life(began=101.0, ready=104.0, steps=range(1, 3)),
        quorum(106.1, attempt=3, participants=["g0", "g1"]),
        discard(106.7, attempt=3, seconds=0.65),
        *alone,
        step(4, t=110.0, attempt=5, healing=["g1"], shares={"g0": [8, 9], "g1": []}),
        step(5, t=112.0, attempt=6),
        leaving(113.0),
    ]
    second = [
        start(109.0, began=107.0, incarnation=2),
        {"t": 109.5, "event": "heal", "incarnation": 2, "sources": ["g0"], "bytes": 2_000_000, "seconds": 0.4},
        *(e | {"incarnation": 2} for e in g0[-3:]),
    ]
    g1 = [
        *life(began=101.0, ready=104.0, steps=range(1, 3)),
        quorum(106.1, attempt=3, participants=["g0", "g1"]),
        *second,
    ]
    launcher = [
        LAUNCH,
        of("g1", {"t": 106.5, "event": "fault", "action": "kill"}),
        of("g1", {"t": 106.55, "event": "exit", "incarnation": 1, "code": -9, "reason": "killed by SIGKILL; at once"}),
    ]
    buried = of("g1", {"t": 106.6, "event": "departure", "incarnation": 1, "cause": "killed", "reason": "killed"})
    for writer, events in {"g0": g0, "g1": g1, "launcher": launcher, "lighthouse": [*CHAIN, buried]}.items():
        write(folder, writer, events)
    (folder / "config.toml").write_text("[launch]\ngroups = 2\nprice_per_group_hour = 7.2\n")
    return folder


def test_the_parts_of_a_recovery_follow_one_another(run):
    (found,) = recoveries(read_logs(run))
    assert found.parts_s == {
        "detection": pytest.approx(0.05),
        "burial": pytest.approx(0.05),
        "restart": pytest.approx(0.4),
        "join": pytest.approx(2.0),
        "heal": pytest.approx(0.5),
        "first_share": pytest.approx(2.5),
    }
    assert found.recovery_s == pytest.approx(5.5)


def test_a_death_that_no_launcher_saw_is_counted():
    told = story()
    told["launcher"] = []
    told["g1"] = [{"incarnation": 2 if e["t"] > 3.2 else 1, **e} for e in told["g1"]]
    told["lighthouse"].append(
        of("g1", {"t": 2.1, "event": "departure", "incarnation": 1, "cause": "exited", "reason": "x"})
    )
    (found,) = recoveries(logs(**told))
    assert (found.group, found.code, found.killed, found.injected) == ("g1", None, True, False)
    assert found.stall_s == pytest.approx(0.15)
    assert found.recovery_s == pytest.approx(2.91)


def test_last_words_of_a_group_that_was_started_apart_are_a_death_with_a_code():
    events = [*life(began=101.0, ready=104.0, steps=range(1, 3)), leaving(106.5, code=7)]
    (found,) = recoveries(logs(CHAIN, g0=life(began=101.0, ready=104.0, steps=range(1, 6)), g1=events))
    assert (found.group, found.code, found.killed) == ("g1", 7, False)


def test_groups_that_drain_or_are_done_have_not_died():
    for code in (0, 75):
        events = [*life(began=101.0, ready=104.0, steps=range(1, 3)), leaving(106.5, code=code)]
        assert recoveries(logs(CHAIN, g0=events)) == ()


def test_quantiles():
    assert quantiles([]) is None
    assert quantiles([3.0]) == {"p50": 3.0, "p95": 3.0, "max": 3.0, "n": 1}
    assert quantiles(range(101)) == {"p50": 50, "p95": 95, "max": 100, "n": 101}


def test_the_factors_of_goodput_multiply_to_the_committed_tokens(run):
    """Five steps of 16 tokens; six attempts; undisturbed is a second; from the first commit to the last seven."""
    ratios = read_ratios(read_logs(run), groups=2)
    assert ratios.commit_ratio == pytest.approx(5 / 6)
    assert ratios.participation_ratio == pytest.approx((2 + 2 + 1 + 1 + 2) / 5 / 2)
    assert ratios.goodput_ratio == pytest.approx(4 * 1.0 / 7.0)
    product = ratios.commit_ratio * ratios.participation_ratio * ratios.step_time_ratio
    assert product == pytest.approx(ratios.goodput_ratio)


def test_an_undisturbed_run_reaches_its_own_speed():
    ratios = read_ratios(logs(CHAIN, g0=life(began=101.0, ready=104.0, steps=range(1, 6))), groups=2)
    assert (ratios.commit_ratio, ratios.participation_ratio) == (1.0, 1.0)
    assert ratios.goodput_ratio == pytest.approx(1.0)


def test_a_batch_that_shrinks_with_the_groups_costs_participation_alone():
    """One group of two, at the same step time, of half the tokens."""
    half = [commit(s, {"g0": [s]}, t=104.0 + s, tokens=8, attempt=s) for s in (3, 4, 5)]
    ratios = read_ratios(logs(CHAIN, g0=[*life(began=101.0, ready=104.0, steps=range(1, 3)), *half]), groups=2)
    assert ratios.goodput_ratio == pytest.approx((16 + 3 * 8) / 4 / 16)


def test_a_run_that_never_had_all_groups_has_no_undisturbed_speed():
    assert (
        read_ratios(logs(CHAIN, g0=life(began=101.0, ready=104.0, steps=range(1, 6))), groups=3).goodput_ratio is None
    )
    assert read_ratios(logs([]), groups=2).commit_ratio is None


def test_the_object_has_the_fields_of_the_contract(run, capfd):
    assert main(["report", str(run), "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    wanted = {
        "wall_s",
        "seconds",
        "commit_ratio",
        "participation_ratio",
        "step_time_ratio",
        "goodput_ratio",
        "recoveries",
    }
    assert wanted <= set(data)
    there = sum(s for phases in data["seconds"].values() for phase, s in phases.items() if phase != "gone")
    assert data["cost_per_million_tokens"] == pytest.approx(7.2 * there / 3600 / 80 * 1e6)
    for phases in data["seconds"].values():
        assert sum(phases.values()) == pytest.approx(data["wall_s"])
    assert data["recovery_quantiles_s"]["stall"]["n"] == 1
    assert set(data["definitions"]) == {d.name for d in DEFINITIONS} <= set(data)


def test_the_text_has_every_phase_death_and_measure(run, capsys):
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"(?m)^  phase +g0 +g1 +of all$", text)
    assert re.search(
        r"(?m)^  g1\.1 +0\.400 +5\.500 +0\.050 +0\.050 +0\.400 +2\.000 +0\.500 +2\.500 +2\.0 +killed by SIGKILL", text
    )
    for definition in DEFINITIONS:
        assert re.search(rf"(?m)^  {definition.name} ", text)
        assert definition.source in text


def test_damaged_lines_are_counted_and_named(run, capfd):
    path = run / "events" / "g0.jsonl"
    good = path.read_bytes().splitlines(keepends=True)
    bad = [
        b"\x00\xff{\n",
        b'{"t": NaN, "event": "commit"}\n',
        b'{"t": 105.0, "event": "commit", "shares": 3}\n',
        b"[1]\n",
    ]
    strange = b'{"t": 7.0e9, "event": "discard"}\n'
    path.write_bytes(b"".join([*good[:3], *bad, strange, b"\n", *good[3:], good[-1][:20]]))
    assert main(["report", str(run), "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    named = [line.rpartition(":")[0] for line in data["damaged"][:5]]
    assert named == [*(f"events/g0.jsonl:{n}" for n in (4, 5, 6, 7)), f"events/g0.jsonl:{len(good) + 7}"]
    assert "far from the others" in data["damaged"][5]
    assert data["steps"] == 5
    text = full_text(read_report(read_logs(run)))
    assert "6 damaged lines were passed over" in text


class Page(html.parser.HTMLParser):
    """What a page asks for, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        asking = {"src", "href", "xlink:href", "data", "srcset", "action"}
        self.asked += [value for name, value in attrs if name in asking and not value.startswith("#")]
        self.asked += [tag] if tag in {"script", "link", "iframe", "object"} else []

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_drawings_and_the_page(run, tmp_path, capsys):
    png, page = tmp_path / "new" / "run.png", tmp_path / "new" / "run.html"
    assert main(["report", str(run), "--png", str(png), "--html", str(page)]) == 0
    assert f"drawn: {png}" in capsys.readouterr().out
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", head[16:24])) > 600
    text = page.read_text()
    found = Page(text)
    assert not found.asked
    assert not re.search(r"url\((?!#)|@import", text)
    assert not found.open
    assert text.count("<svg") == 3
    assert "a <run> & more" in found.text
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert not re.search("#010203|#000000", text)  # ink of our own would vanish in the dark
    for words in ("Time of each group", "Where the time went", "Deaths and what followed", "discarded", "g1.1 at 6 s"):
        assert words in found.text, words


def test_a_file_that_cannot_be_written_is_a_usage_error(run, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["report", str(run), "--png", str(tmp_path / "file" / "run.png")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_drawing_is_imported_only_to_draw():
    """A report without a drawing must not take the second that matplotlib takes."""
    drawing = {"ops.report_charts", "ops.report_html"}
    for path in sorted((ROOT / "ops").rglob("*.py")):
        if f"ops.{path.stem}" not in drawing:
            top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
            named = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
            named |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
            assert not {name for name in named if name in drawing or name.partition(".")[0] == "matplotlib"}, path


def test_a_lane_is_cut_into_columns_that_show_what_is_rare():
    spans = [Span(0.0, 600.0, "compute"), Span(600.0, 600.3, "discarded"), Span(600.3, 1600.0, "optimizer")]
    bars = columns(spans, 1600.0)
    assert sum(width for lane in bars.values() for _, width in lane) == pytest.approx(1600.0)
    assert bars["discarded"] == [] or bars["discarded"] == [(600.0, 1600.0 / COLUMNS)]
    assert columns([], 0.0) == {}


def test_a_bar_of_the_waterfall_is_as_long_as_what_it_tells():
    """Of a run that lost little, too: an axis that begins elsewhere makes a small loss look like most of it."""
    steady = life(began=100.0, ready=100.5, steps=range(1, 40))
    report = read_report(logs([], [LAUNCH], g0=steady, g1=steady))
    ax = Figure().subplots()
    losses(ax, report)
    assert ax.get_xlim()[0] == 0
    bars = [patch.get_width() for patch in ax.patches]
    assert bars[0] == pytest.approx(100.0)
    assert bars[-1] == pytest.approx(100.0 - sum(bars[1:-1]))
    assert bars[-1] > 55


def test_a_run_without_deaths_or_steps_is_drawn(tmp_path, capsys):
    write(tmp_path, "g0", [start(104.0, began=101.0)])
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().count("<svg") == 2
    assert "and going on" in capsys.readouterr().out
