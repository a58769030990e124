"""A disk that is really full: a warning, a counter, training goes on; at the last save exit 6. A flat disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpointing.errors import CheckpointError
from checkpointing.resume import survey
from checkpointing.writer import Checkpointer
from configs.words import Exit
from tests.support.small_disk import SmallDisk, why_not
from tests.support.states import Recorder, clocks, lineage, names, tensors


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    if why_not():
        pytest.skip(why_not())
    with SmallDisk(tmp_path / "disk", size="256k") as disk:
        yield disk


def test_a_full_disk_fails_saves_says_so_and_works_again_when_there_is_room(disk):
    folder = disk.folder / "checkpoints"
    sink = Recorder()
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=2, sink=sink)
    saver.start()

    def save(step: int) -> dict[str, object]:
        saver.maybe_save(tensors=tensors(step), clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        saver.wait()
        return sink.events[-1]

    assert save(1)["status"] == "saved"
    disk.fill()
    full = save(2)
    assert (full["status"], full["free_bytes"]) == ("failed", 0)
    assert "No space left" in str(full["reason"])
    assert saver.counts == {"saved": 1, "skipped": 0, "failed": 1}
    assert names(folder) == [lineage(1).folder], "no half one"
    with pytest.raises(CheckpointError, match="No space left") as error:
        saver.finish(tensors=tensors(3), clocks=clocks(3))
    assert error.value.code == Exit.CHECKPOINT
    disk.clear()
    assert save(4)["status"] == "saved"
    disk.forbid()
    assert "Read-only file system" in str(save(5)["reason"])
    disk.allow()
    saver.finish(tensors=tensors(6), clocks=clocks(6))
    assert [found.lineage.step for found in survey(folder, secret=None).found] == [6, 4]
    assert saver.close(wait_s=30)


def test_two_hundred_steps_keep_the_disk_flat(tmp_path):
    folder = tmp_path / "checkpoints"
    foreign = ["step-7", "step-00000001-1.1.bak", "notes", ".cache"]
    for name in foreign:
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("mine")
    sink = Recorder()
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=3, sink=sink)
    saver.start()
    most, sizes = 0, []
    for step in range(1, 201):
        saver.maybe_save(tensors=tensors(step, rows=4), clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        saver.wait()
        ours = [path for path in folder.iterdir() if path.name not in foreign]
        most = max(most, len(ours))
        sizes.append(sum(file.stat().st_size for path in ours for file in path.iterdir()))
    assert saver.close(wait_s=30)
    assert saver.counts["saved"] == 200
    assert most == 3
    assert max(sizes[3:]) - min(sizes[3:]) < 100, "bytes; a manifest's numbers have more or fewer digits"
    assert names(folder) == sorted([*foreign, *(lineage(step).folder for step in (198, 199, 200))])
    assert all((folder / name / "file").read_text() == "mine" for name in foreign)
