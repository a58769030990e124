"""Whole runs on disks that are full, read-only, gone and back; and who saves which step."""

from __future__ import annotations

import urllib.request
from collections import Counter

import pytest

from checkpointing.resume import survey
from configs.words import Exit
from tests.support.field import Field, one_history
from tests.support.small_disk import SmallDisk, why_not

small_disks = pytest.mark.skipif(bool(why_not()), reason=why_not())


def outcome(field: Field, status: str, *, after: float = 0.0, text: str = "") -> float:
    """When a turn after that moment first ended so."""

    def wanted(event) -> bool:
        return event["status"] == status and event["t"] > after and text in event.get("reason", "")

    return float(field.wait("g0", "checkpoint", wanted)["t"])


def counted(field: Field, status: str) -> float:
    """The counter of g0, as Prometheus scrapes it."""
    address = field.wait("g0", "start")["endpoint"]["metrics"]
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("phalanx_checkpoints_total{") and f'status="{status}"' in line
    )


@small_disks
def test_a_disk_that_is_full_or_read_only_or_gone_costs_saves_and_nothing_else_until_the_last(rig):
    with (
        Field(rig, "bad-disk", groups=1, checkpoint__keep_latest_k=1) as field,
        SmallDisk(field.folder.root / "checkpoints", size="3m") as disk,
    ):
        field.start("g0")
        t = outcome(field, "saved")
        failures = 0.0
        for spoil, mend, why in (
            (disk.fill, disk.clear, "No space left"),
            (disk.forbid, disk.allow, "Read-only file system"),
        ):
            spoil()
            t = outcome(field, "failed", after=t, text=why)
            t = field.wait_commit("g0", after=t)["t"]
            assert counted(field, "failed") > failures
            mend()
            t = outcome(field, "saved", after=t)
            failures = counted(field, "failed")
        disk.take_away()
        disk.folder.rename(disk.folder.with_name("elsewhere"))
        disk.folder.touch()  # a file where the folder was
        t = outcome(field, "failed", after=t)
        t = field.wait_commit("g0", after=t)["t"]
        assert counted(field, "failed") > failures
        disk.folder.unlink()
        t = outcome(field, "saved", after=t)
        (log,) = field.folder.root.glob("logs/g0/1/rank0.log")
        for why in ("No space left", "Read-only file system"):
            assert any("failed" in line and why in line for line in log.read_text().splitlines()), "a warning"
        free = [e["free_bytes"] for e in field.events("g0", "checkpoint") if e.get("free_bytes") is not None]
        assert min(free) < 1 << 16 < max(free)
        with SmallDisk(disk.folder, size="64k"):
            run = field.drain()
        one_history(run)
        (end,) = field.ends
        assert end.code == Exit.CHECKPOINT, end
        assert "could not be saved in" in end.reason


def together(commit) -> bool:
    """Both had the state."""
    return len(commit["participants"]) == 2 and not commit["healing"]


def test_each_step_has_one_writer_and_another_takes_over_when_it_dies(rig):
    keys = {"checkpoint__keep_latest_k": 0, "checkpoint__async_mode": "disabled"}  # so that no turn is skipped
    with Field(rig, "writers", **keys) as field:
        field.start("g0", "g1")
        joint = field.wait("g0", "commit", together)
        for dies, stays in (("g1", "g0"), ("g0", "g1")):
            field.wait_commit(stays, step=joint["step"] + 5)
            field.kill(dies)
            field.wait_exit(dies)
            alone = field.wait_commit(stays, step=joint["step"], alone=True)
            field.wait(stays, "checkpoint", lambda e, alone=alone: e["status"] == "saved" and e["step"] > alone["step"])
            field.start(dies)
            after = field.wait(dies, "heal", lambda e, alone=alone: e["step"] > alone["step"])["t"]
            joint = field.wait(stays, "commit", lambda e, after=after: e["t"] > after and together(e))
        field.wait_commit("g0", step=joint["step"] + 5)
        run = field.drain()
    one_history(run)
    folder = run.folder.root / "checkpoints"
    assert not [path.name for path in folder.iterdir() if not path.name.startswith("step-")], "nothing half, none aside"
    saved = [(e["step"], g) for g in ("g0", "g1") for e in run.events(g, "checkpoint") if e["status"] == "saved"]
    assert max(Counter(step for step, _ in saved).values()) == 1, "one writer for each step"
    on_disk = survey(folder, secret=None, verify_newest=1000)
    assert on_disk.passed_over == ()
    writers = {found.lineage.step: found.manifest.writer.partition(".")[0] for found in on_disk.found}
    assert writers == dict(saved)
    commits = [e for g in ("g0", "g1") for e in run.events(g, "commit")]
    alone_at = {e["step"]: e["participants"][0] for e in commits if len(e["participants"]) == 1}
    assert set(alone_at.values()) == {"g0", "g1"}, "each was left alone once"
    for step, group in alone_at.items():
        tried = [e for e in run.events(group, "checkpoint") if e["step"] == step]
        assert tried, f"the turn of the dead one at step {step} was nobody's"
    assert {group for step, group in saved if step >= joint["step"]} == {"g0", "g1"}, "both again"
