"""What a rollback cut off is out of every reader's sight: moved as a whole, with its reason, by whoever comes first."""

from __future__ import annotations

import shutil
from pathlib import Path

from checkpointing.folder import limit_aside, set_aside
from checkpointing.retention import behind, fenced_off
from checkpointing.writer import Checkpointer
from tests.support.states import clocks, lineage, names, tensors

FENCES = [lineage(9, 2), lineage(1, 5)]


def saver(folder: Path, writer: str) -> Checkpointer:
    made = Checkpointer(folder, group=None, writer=writer, keep_latest_k=0)
    made.start()
    return made


def test_only_what_is_above_the_step_and_older_than_the_quorum_of_a_fence_lies_behind_it():
    fence = lineage(4, 7)
    cut = [(step, running) for step in (3, 4, 5) for running in (6, 7, 8) if behind(lineage(step, running), fence)]
    assert cut == [(5, 6)]
    reasons = fenced_off([lineage(5, 6), lineage(4, 6), lineage(6, 1)], [lineage(5, 2), fence])
    assert reasons == {
        lineage(5, 6): "it was rolled back: the run went on from step 4",
        lineage(6, 1): "it was rolled back: the run went on from step 5",
    }


def test_what_lies_behind_a_rollback_is_set_aside_once_by_whoever_comes_first(tmp_path):
    folder = tmp_path / "checkpoints"
    one, other = saver(folder, "g0.2"), saver(folder, "g1.2")
    for step in (1, 2, 3, 4):
        one.finish(tensors=tensors(step), clocks=clocks(step))
    one.finish(tensors=tensors(2), clocks=clocks(2, running=7))
    aside = {step: folder / f".aside-{lineage(step).folder}" for step in (2, 3, 4)}
    for step in (3, 4):
        shutil.move(aside[step], folder / lineage(step).folder)  # published late, by one that was paused
    shutil.copytree(folder / lineage(3).folder, aside[3])  # and here for the second time
    (aside[3] / "REASON.txt").write_text("the first time\n")
    for each in (one, other, one, other):
        each.fence(FENCES)
    assert one.wait()
    assert other.wait()
    live = [lineage(1).folder, lineage(2, 7).folder]
    assert names(folder) == sorted(live + [path.name for path in aside.values()])
    for step in (3, 4):
        assert (aside[step] / "REASON.txt").read_text() == "it was rolled back: the run went on from step 1\n"
        assert len(list(aside[step].iterdir())) == len(list((folder / live[0]).iterdir())) + 1, "moved as a whole"
    shutil.move(aside[4], folder / lineage(4).folder)
    one.fence(FENCES)
    one.wait()
    assert lineage(4).folder in names(folder), "known fences cost nothing: the disk is not looked at again"
    assert one.close(wait_s=30)
    assert other.close(wait_s=30)


def test_a_disk_that_cannot_be_read_is_no_harm(tmp_path):
    (tmp_path / "file").touch()
    made = saver(tmp_path / "file", "g0.2")
    made.fence(FENCES)
    assert made.wait(limit_s=30)
    assert made.close(wait_s=30)


def test_links_among_what_was_set_aside_hinder_no_save(tmp_path):
    folder = tmp_path / "checkpoints"
    made = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=1)
    made.start()
    folder.mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "precious").touch()
    dangling, followed = folder / ".aside-step-00000008-17.3", folder / ".aside-step-00000009-17.3"
    dangling.symlink_to(tmp_path / "nowhere")
    followed.symlink_to(kept)
    for step in (1, 2):
        made.finish(tensors=tensors(step), clocks=clocks(step))
    assert made.close(wait_s=30)
    limit_aside(folder, keep=1)
    assert names(folder) == sorted([dangling.name, followed.name, lineage(2).folder])
    # A bad checkpoint of the same name takes the link's place, and what the link points to stays.
    for name in ("step-00000008-17.3", "step-00000009-17.3"):
        (folder / name).mkdir()
        assert set_aside(folder / name, "it is bad") == folder / f".aside-{name}"
    assert (followed / "REASON.txt").read_text() == "it is bad\n"
    assert not followed.is_symlink()
    assert list(kept.iterdir()) == [kept / "precious"]
