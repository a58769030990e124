"""Where a run goes on from, with real processes: a chosen step, another run's weights, disks that groups do not share;
and what it saves when one group alone is left."""

from __future__ import annotations

import shutil
from pathlib import Path

from configs.run_folder import read_events
from configs.words import Exit, Lineage


def steps_in(folder: Path) -> set[int]:
    return {lineage.step for path in folder.glob("step-*") if (lineage := Lineage.parse_folder(path.name))}


def ranks_said(run) -> str:
    return "".join(path.read_text() for path in sorted((run.folder.root / "logs").glob("*/*/rank0.log")))


def test_going_back_to_a_chosen_step_is_met_once_and_needs_a_fork(rig):
    first = rig.run("back", groups=1, ranks=1, steps=6, checkpoint__keep_latest_k=0)
    assert first.code == Exit.DONE, first.said
    folder = first.folder.root / "checkpoints"
    left = {path.name for path in folder.glob("step-*") if Lineage.parse_folder(path.name).step > 3}
    refused = rig.run("back", groups=1, ranks=1, steps=8, checkpoint__load_step=3)
    assert refused.code == Exit.CHECKPOINT, refused.said
    assert "set checkpoint.fork to go back on purpose" in ranks_said(refused) + refused.reason
    missing = rig.run("back", groups=1, ranks=1, steps=8, checkpoint__load_step=7, checkpoint__fork=True)
    assert missing.code == Exit.CHECKPOINT, "not a fresh start"
    assert "checkpoint.load_step = 7 is not in" in missing.reason
    assert missing.events("lighthouse", "rollback") == []
    again = rig.run(
        "back",
        groups=1,
        ranks=1,
        steps=12,
        checkpoint__load_step=3,
        checkpoint__fork=True,
        checkpoint__keep_latest_k=0,
        checkpoint__async_mode="disabled",  # so that step 7 is there when step 9 is killed
        chaos__failpoints=["g0:backward@9:kill"],
    )
    assert again.code == Exit.DONE, again.said
    restored = [e["step"] for e in again.events("g0", "restore") if e["source"] == "disk"]
    assert restored[0] == 3
    assert len(restored) == 2, restored
    assert restored[1] >= 7, "its restart does not go back again"
    assert "checkpoint.load_step = 3 was met earlier" in ranks_said(again)
    aside = {path.name.removeprefix(".aside-"): path for path in folder.glob(".aside-*")}
    assert set(aside) == left, "the history that was left is moved aside, not written over"
    assert all("rolled back" in (path / "REASON.txt").read_text() for path in aside.values())
    ended = rig.run("back", groups=1, ranks=1, steps=12, checkpoint__load_step=9, checkpoint__fork=True)
    assert ended.code == Exit.CHECKPOINT, "what is asked for is not what the run did"
    assert "checkpoint.load_step = 9: the run has ended at 12:" in ended.reason
    done = rig.run("back", groups=1, ranks=1, steps=12, checkpoint__load_step=3, checkpoint__fork=True)
    assert done.code == Exit.DONE, done.said


def test_a_run_starts_from_another_runs_weights_and_says_when_it_does_not(rig):
    source = rig.run("source", groups=1, ranks=1, steps=3)
    options = {"checkpoint__initial_load_path": str(source.folder.root), "groups": 2, "ranks": 2}
    first = rig.run("from-source", steps=3, **options)
    assert first.code == Exit.DONE, first.said
    plain = rig.run("from-seed", groups=1, ranks=1, steps=3)
    assert first.series("loss")[1] != plain.series("loss")[1]
    scratch = [e for e in first.events("g0", "restore") if e["source"] == "scratch"]
    assert [Path(e["weights"]).name for e in scratch] == [source.chain[-1].folder]
    assert "step 0 takes model from" in ranks_said(first)
    assert first.chain[-1].step == 3, "its clocks are its own"
    second = rig.run("from-source", steps=5, **options)
    assert second.code == Exit.DONE, second.said
    assert "is ignored: " in ranks_said(second)
    gone = rig.run("from-nothing", groups=1, ranks=1, steps=3, checkpoint__initial_load_path="/nonexistent")
    assert gone.code == Exit.CHECKPOINT, "not a fresh start"


def test_groups_that_share_no_disk_go_on_from_the_newest_of_those_that_came(rig):
    options = {"checkpoint__folder": "disks/{group}", "checkpoint__keep_latest_k": 0, "ranks": 1}
    options["lr_scheduler__total_steps"] = 80
    alone = rig.run("unshared-alone", groups=1, ranks=1, steps=80)
    first = rig.run("unshared", steps=8, **options)
    assert first.code == Exit.DONE, first.said
    disks = first.folder.root / "disks"
    held = {group: steps_in(disks / group) for group in ("g0", "g1")}
    assert held["g0"] | held["g1"] == set(range(1, 9))
    low, high = sorted(held, key=lambda group: max(held[group]))  # who saved the last one is not the test's to say
    assert max(held[high]) == 8
    both = rig.run("unshared", steps=12, **options)
    assert both.code == Exit.DONE, both.said
    restores = {g: [e["step"] for e in both.events(g, "restore") if e["source"] == "disk"] for g in ("g0", "g1")}
    assert restores == {high: [8], low: []}, "the newest among those that came; the other heals"
    assert len(both.events(low, "heal")) >= 1

    last = {g: max(steps_in(disks / g)) for g in ("g0", "g1")}
    late, early = sorted(last, key=lambda g: last[g], reverse=True)
    kept, held_late = last[early], steps_in(disks / late)
    slow = rig.run(
        "unshared",
        steps=80,
        fault_tolerance__start_wait_s=1,
        chaos__failpoints=[f"{late}:build:delay=2.5"],
        **options,
    )
    assert slow.code == Exit.DONE, slow.said
    assert [e["step"] for e in slow.events(early, "restore") if e["source"] == "disk"][-1] == kept < last[late]
    lighthouse = read_events(slow.folder.event_log("lighthouse"))
    assert any("healing" in e and late in e["healing"] for e in slow.events(early, "commit")), lighthouse
    assert slow.series("digest") == alone.series("digest"), "the late one's newer state was not taken"
    chain = {lineage.folder for lineage in slow.chain}
    newest = max(path.name for path in (disks / late).glob("step-*"))
    assert newest in chain, "it saves again, of the confirmed history"
    assert [path.name for path in (disks / late).glob("step-*") if path.name not in chain] == []
    aside = {Lineage.parse_folder(path.name.removeprefix(".aside-")).step for path in (disks / late).glob(".aside-*")}
    assert {*range(kept + 1, last[late] + 1)} & held_late == aside, "moved, not written over"


def test_the_last_group_saves_every_step_until_another_has_healed(rig):
    run = rig.run(
        "guard",
        ranks=1,
        steps=60,
        checkpoint__interval=25,
        checkpoint__keep_latest_k=0,
        chaos__failpoints=["g1:backward@8:kill"],
    )
    assert run.code == Exit.DONE, run.said
    lone = {e["step"] for e in run.events("g0", "commit") if len(e["participants"]) - len(e["healing"]) == 1}
    tried = {e["step"] for g in ("g0", "g1") for e in run.events(g, "checkpoint")}
    assert lone
    assert lone <= tried
    assert tried <= lone | {25, 50, 60}
    assert "no other group holds the state: every step is saved" in ranks_said(run)
    assert "another group holds the state" in ranks_said(run)


def test_by_the_clock_both_ranks_agree_and_few_are_saved(rig):
    run = rig.run("clock", steps=20, checkpoint__interval_s=3600, checkpoint__async_mode="async_with_pinned_mem")
    assert run.code == Exit.DONE, run.said
    saved = [e["step"] for g in ("g0", "g1") for e in run.events(g, "checkpoint") if e["status"] == "saved"]
    assert 20 in saved
    assert len(saved) <= 3
    assert shutil.disk_usage(run.folder.root).free > 0


def test_a_run_saves_in_an_object_store_and_goes_on_from_there(rig, tmp_path):
    options = {"ranks": 2, "checkpoint__folder": f"file://{tmp_path}/store", "lr_scheduler__total_steps": 8}
    first = rig.run("objects", steps=5, **options)
    assert first.code == Exit.DONE, first.said
    assert max(steps_in(tmp_path / "store")) == 5
    second = rig.run("objects", steps=8, **options)
    assert second.code == Exit.DONE, second.said
    assert {e["step"] for g in ("g0", "g1") for e in second.events(g, "restore") if e["source"] == "disk"} == {5}
    assert second.ledger.order_matches
    spool = second.folder.root / "spool"
    assert [path.name for path in spool.glob("*/step-*")] == []
    assert len(steps_in(tmp_path / "store")) <= 6
