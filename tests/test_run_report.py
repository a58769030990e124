"""The report of a real run: its ledger of time adds up while it goes on, after a kill, and after it was resumed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from configs.words import Exit
from ops.goodput import PHASES
from ops.history import read_logs
from ops.report import Report, read_plan, read_report
from tests.support.rig import Run


def report_of(run: Run) -> Report:
    return read_report(read_logs(run.folder.root), plan=read_plan(run.folder.root))


def adds_up(report: Report) -> None:
    for group, seconds in report.seconds.items():
        assert set(seconds) <= set(PHASES), group
        assert math.fsum(seconds.values()) == pytest.approx(report.wall_s, abs=1e-6)


def test_the_time_of_a_run_with_a_kill_adds_up(rig):
    config = rig.config("report", ranks=1, steps=40, chaos__failpoints=["g1:forward@4#0:kill"])
    root = Path(config.job.dump_folder)
    going: list[Report] = []

    def look(line: str) -> None:
        if line.startswith("step"):
            going.append(read_report(read_logs(root), plan=read_plan(root)))

    run = rig.run_config(config, hear=look)
    assert run.code == Exit.DONE, run.said
    assert any(report.goodput.running for report in going)
    for report in (*going, report_of(run)):
        adds_up(report)

    assert [event["groups"] for event in run.events("launcher", "launch")] == [["g0", "g1"]]
    report = report_of(run)
    assert not report.goodput.running
    assert not report.damaged
    assert not report.clocks
    assert set(report.seconds) == {"g0", "g1"}
    dead = report.seconds["g1"]
    assert dead["gone"] > 0
    assert dead["discarded"] > 0
    assert dead["heal"] > 0
    died = report.recoveries[0].t - report.goodput.began
    again = {g: [s for s in report.goodput.spans[g] if s.phase == "starting" and s.begin >= died] for g in ("g0", "g1")}
    assert again["g1"]
    assert not again["g0"]
    for seconds in report.seconds.values():
        assert seconds["other"] < 0.1 * report.wall_s  # its records tell of nearly every second
    (found,) = report.recoveries
    assert found.recovery_s == pytest.approx(math.fsum(found.parts_s.values()), abs=1e-6)
    assert found.heal_s <= found.parts_s["heal"] + 0.05
    ratios = report.ratios
    assert 0.5 < ratios.commit_ratio < 1
    assert 0.5 < ratios.participation_ratio < 1

    resumed = rig.run("report", ranks=1, steps=42)
    assert resumed.code == Exit.DONE, resumed.said
    longer = report_of(resumed)
    adds_up(longer)
    assert longer.seconds["g0"]["gone"] > report.seconds["g0"].get("gone", 0.0)  # between the two launches
    assert longer.seconds["g0"]["starting"] > report.seconds["g0"]["starting"]
