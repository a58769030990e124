"""Whole runs and their disks: what groups that share none go on from, and what is no place to go on from."""

from __future__ import annotations

import shutil
from pathlib import Path

from checkpointing.resume import survey
from configs.words import Exit, Lineage
from tests.support.field import Field, one_history, wait_until
from tests.support.rig import holds
from tests.support.states import flip


def lineages(folder: Path) -> list[Lineage]:
    """Published there and good by manifest and sizes, newest first."""
    return [found.lineage for found in survey(folder, secret=None, verify_newest=0).found]


def test_of_groups_that_share_no_disk_those_that_came_decide_and_who_comes_later_brings_nothing(rig):
    """Both die; G1's disk is ahead. G0 goes on from its own after the limit, and G1 comes back with more steps."""
    keys = {"checkpoint__folder": "disks/{group}", "checkpoint__keep_latest_k": 0}
    with Field(rig, "unshared-lives", **keys) as field:
        disks = {group: field.folder.root / "disks" / group for group in ("g0", "g1")}
        field.start("g0", "g1")
        field.wait_commit("g1", step=10)
        for disk in disks.values():
            wait_until(lambda disk=disk: lineages(disk), "both save", field.said)
        field.kill("g0")
        field.wait_exit("g0")
        best = lineages(disks["g0"])[0]
        field.wait("g1", "checkpoint", lambda e: e["status"] == "saved" and e["step"] > best.step + 3)
        field.kill("g1")
        field.wait_exit("g1")
        lost = [lineage for lineage in lineages(disks["g1"]) if lineage.step > best.step]
        assert lost

        field.start("g0", fault_tolerance__start_wait_s=2)
        rollback = field.wait("lighthouse", "rollback")
        assert rollback["to"] == str(best)
        restored = field.wait("g0", "restore", lambda e: e["incarnation"] == 2)
        assert (restored["source"], restored["lineage"]) == ("disk", str(best))
        asked = field.wait("g0", "start", lambda e: e["incarnation"] == 2)["t"]
        assert rollback["t"] - asked > 1.5, "it waited for the other, up to the limit"
        field.wait_commit("g0", step=best.step + 2, after=restored["t"])
        field.start("g1")
        healed = field.wait("g1", "heal", lambda e: e["incarnation"] == 2)
        assert healed["sources"] == ["g0"]
        field.wait("g1", "checkpoint", lambda e: e["incarnation"] == 2 and e["status"] == "saved")
        wait_until(lambda: not set(lost) & set(lineages(disks["g1"])), "it is set aside", field.said)
        run = field.drain()
    one_history(run)
    assert [e for e in run.events("g1", "restore") if e["incarnation"] == 2] == [], "a later joiner brings no state"
    chain = set(run.chain)
    assert not chain & set(lost)
    for lineage in lost:
        aside = disks["g1"] / f".aside-{lineage.folder}"
        assert (aside / "manifest.json").exists(), "moved, not written over"
        assert f"the run went on from step {best.step}" in (aside / "REASON.txt").read_text()
    for group, disk in disks.items():
        assert set(lineages(disk)) <= chain, f"{group}: nothing that a reader accepts leaves the confirmed chain"


def test_a_step_that_one_of_them_holds_is_enough_and_one_that_none_holds_changes_nothing(rig):
    options = {"checkpoint__folder": "disks/{group}", "checkpoint__keep_latest_k": 0, "ranks": 1}
    options["lr_scheduler__total_steps"] = 12
    first = rig.run("unshared-back", steps=8, checkpoint__async_mode="disabled", **options)
    assert first.code == Exit.DONE, first.said
    held = {g: {lineage.step for lineage in lineages(first.folder.root / "disks" / g)} for g in ("g0", "g1")}
    wanted, before = max(held["g1"] - held["g0"]), first.series("digest")
    back = rig.run("unshared-back", steps=10, checkpoint__load_step=wanted, checkpoint__fork=True, **options)
    assert back.code == Exit.DONE, back.said
    restores = {g: [e["step"] for e in back.events(g, "restore") if e["source"] == "disk"] for g in ("g0", "g1")}
    assert restores == {"g0": [], "g1": [wanted]}
    assert back.events("g0", "heal")[-1]["sources"] == ["g1"]
    assert {s: d for s, d in back.series("digest").items() if s <= 8} == before
    rollbacks = len(back.events("lighthouse", "rollback"))
    none = rig.run("unshared-back", steps=12, checkpoint__load_step=99, checkpoint__fork=True, **options)
    assert none.code == Exit.CHECKPOINT, none.said
    assert "checkpoint.load_step = 99 is not in" in none.reason
    assert "nobody brings the state that was asked for" in none.reason
    assert len(none.events("lighthouse", "rollback")) == rollbacks, "what cannot be met fences nothing off"
    on = rig.run("unshared-back", steps=12, **options)
    assert on.code == Exit.DONE, on.said
    assert 10 in [e["step"] for g in ("g0", "g1") for e in on.events(g, "restore") if e["source"] == "disk"]
    one_history(on)


def test_none_valid_among_several_is_exit_6_and_every_one_is_named(rig):
    """Damage that only digests show: each is tried, newest first; never a silent fresh start."""
    first = rig.run("none-valid", groups=1, ranks=1, steps=5, checkpoint__keep_latest_k=3)
    assert first.code == Exit.DONE, first.said
    folders = sorted((first.folder.root / "checkpoints").glob("step-*"))
    assert len(folders) == 3
    for folder in folders:
        flip(max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size), 5000)
    again = rig.run("none-valid", groups=1, ranks=1, steps=8)
    assert again.code == Exit.CHECKPOINT, again.said
    assert all(folder.name in again.reason for folder in folders), again.reason
    assert again.reason.count("is damaged") == 3
    assert max(e["step"] for e in again.events("g0", "commit")) == 5, "nothing was trained"
    assert sorted((first.folder.root / "checkpoints").glob("step-*")) == folders, "nothing was moved or deleted"


def test_a_folder_that_is_gone_is_no_fresh_start(rig):
    """As when its disk is not mounted: the logs know better."""
    first = rig.run("unmounted", groups=1, ranks=1, steps=4)
    assert first.code == Exit.DONE, first.said
    checkpoints = first.folder.root / "checkpoints"
    away = checkpoints.rename(first.folder.root / "away")
    again = rig.run("unmounted", groups=1, ranks=1, steps=6)
    assert again.code == Exit.CHECKPOINT, again.said
    assert "were saved in this run, the newest of step 4: bring them back" in again.reason
    shutil.rmtree(checkpoints, ignore_errors=True)
    away.rename(checkpoints)
    last = rig.run("unmounted", groups=1, ranks=1, steps=6)
    assert last.code == Exit.DONE, last.said
    holds(last, steps=6)


def test_a_state_that_does_not_fit_the_microbatches_is_refused(rig):
    """Sample 6 is no whole number of microbatches of 4."""
    first = rig.run("misfit", groups=1, ranks=1, steps=1, training__local_batch_size=2, training__global_batch_size=6)
    assert first.code == Exit.DONE, first.said
    keys = {"training__local_batch_size": 4, "training__global_batch_size": 8, "checkpoint__fork": True}
    again = rig.run("misfit", groups=1, ranks=1, steps=3, **keys)
    assert again.code == Exit.CHECKPOINT, again.said
    assert "no whole number of microbatches of 4 samples" in again.reason
