"""A disk that is really full: a warning, a counter, training goes on; at the last save exit 6. A flat disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.errors import CheckpointError
from checkpointing.resume import survey
from checkpointing.writer import Checkpointer
from configs.words import Exit
from tests.support.states import Recorder, clocks, lineage, names, tensors


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 256 kB."""
    path = tmp_path / "disk"
    path.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", path], check=False).returncode
    ):
        pytest.skip("a small file system needs root and mount")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_fails_saves_says_so_and_works_again_when_there_is_room(disk):
    sink = Recorder()
    saver = Checkpointer(disk / "checkpoints", group=None, writer="g0.1", keep_latest_k=2, sink=sink)
    saver.start()

    def save(step: int) -> dict[str, object]:
        saver.maybe_save(tensors=tensors(step), clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        saver.wait()
        return sink.events[-1]

    assert save(1)["status"] == "saved"
    room = disk / "room"
    with room.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    full = save(2)
    assert (full["status"], full["free_bytes"]) == ("failed", 0)
    assert "No space left" in str(full["reason"])
    assert saver.counts == {"saved": 1, "skipped": 0, "failed": 1}
    assert sorted(path.name for path in (disk / "checkpoints").iterdir()) == [lineage(1).folder], "no half one"
    with pytest.raises(CheckpointError, match="No space left") as error:
        saver.finish(tensors=tensors(3), clocks=clocks(3))
    assert error.value.code == Exit.CHECKPOINT
    room.unlink()
    assert save(4)["status"] == "saved"
    saver.finish(tensors=tensors(5), clocks=clocks(5))
    assert [found.lineage.step for found in survey(disk / "checkpoints", secret=None).found] == [5, 4]
    assert saver.close(wait_s=30)


def test_two_hundred_steps_keep_the_disk_flat_and_foreign_folders_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    foreign = ["step-7", f"{lineage(1).folder}.bak", "notes", ".cache"]
    for name in foreign:
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("mine")
    sink = Recorder()
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=3, sink=sink)
    saver.start()
    most, sizes = 0, set()
    for step in range(1, 201):
        saver.maybe_save(tensors=tensors(step, rows=4), clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        saver.wait()
        ours = [path for path in folder.iterdir() if path.name not in foreign]
        most = max(most, len(ours))
        if step in (3, 100, 200):
            sizes.add(sum(file.stat().st_size for path in ours for file in path.iterdir()) // 1000)
    assert saver.close(wait_s=30)
    assert saver.counts["saved"] == 200
    assert most <= 3 + 1
    assert max(sizes) - min(sizes) <= 1, sizes
    assert names(folder) == sorted([*foreign, *(lineage(step).folder for step in (198, 199, 200))])
