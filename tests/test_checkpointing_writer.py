"""Background saves by one rank: published once confirmed, never lost, never in training's way."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpointing import storage
from checkpointing.errors import CheckpointError
from checkpointing.resume import load, survey
from checkpointing.writer import BUSY, Checkpointer
from configs.words import Exit
from tests.support.states import Recorder, clocks, flip, lineage, names, same, tensors


class Rig:
    """A checkpointer on a folder, with failpoints that can block or raise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sink = Recorder()
        self.faults: dict[str, Exception | threading.Event] = {}
        self.made: list[Checkpointer] = []

    def checkpointer(self, **options) -> Checkpointer:
        options = {"writer": "g0.2", "keep_latest_k": 0, "sink": self.sink, "failpoint": self._failpoint, **options}
        self.made.append(Checkpointer(self.folder, group=None, **options))
        self.made[-1].start()
        return self.made[-1]

    def save(self, saver: Checkpointer, step: int, *, running: int = 3, confirm: bool = True) -> None:
        """Save a state made from ``step`` and wait until it is written."""
        saver.maybe_save(tensors=tensors(step), clocks=clocks(step, running), turn=True)
        if confirm:
            saver.confirm(lineage(step, running))
        self.settle(saver)

    @staticmethod
    def settle(saver: Checkpointer) -> None:
        """Wait until the worker has done all that was asked: it answers in order."""
        saver.wait()

    def _failpoint(self, name: str, **_) -> None:
        fault = self.faults.get(name)
        if isinstance(fault, threading.Event):
            assert fault.wait(30)
        elif fault is not None:
            raise fault


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path / "run" / "checkpoints")
    yield made
    for fault in made.faults.values():
        if isinstance(fault, threading.Event):
            fault.set()
    for saver in made.made:
        assert saver.close(wait_s=30)


def read(folder: Path, step: int, running: int = 3) -> dict[str, torch.Tensor]:
    found = {name: torch.full_like(tensor, 99) for name, tensor in tensors(0).items()}
    assert load(folder / lineage(step, running).folder, found, group=None, secret=None) == clocks(step, running)
    return found


def test_a_state_is_published_once_it_is_confirmed_and_reads_back_to_the_bit(rig):
    saver = rig.checkpointer()
    rig.save(saver, 1, confirm=False)
    assert names(rig.folder) == [f".writing-g0.2-{lineage(1).folder}"]
    assert rig.sink.events == []
    saver.confirm(lineage(1))
    rig.settle(saver)
    assert names(rig.folder) == [lineage(1).folder] == ["step-00000001-17.3"]
    assert same(read(rig.folder, 1), tensors(1))
    (event,) = rig.sink.events
    assert (event["event"], event["step"], event["status"], event["lineage"]) == ("checkpoint", 1, "saved", "1:17.3")
    assert event["bytes"] > 0
    assert {"seconds", "stall_seconds"} <= event.keys()
    assert saver.last_saved == lineage(1)


def test_each_save_holds_its_own_bytes_in_the_same_buffers(rig):
    saver = rig.checkpointer()
    state = tensors(1)
    pointers = set()
    for step in (1, 2, 3):
        for name, tensor in tensors(step).items():
            state[name].copy_(tensor)
        saver.maybe_save(tensors=state, clocks=clocks(step), turn=True)
        state["model.weight"].zero_()  # training goes on at once
        saver.confirm(lineage(step))
        rig.settle(saver)
        pointers.add(tuple(b.data_ptr() for b in saver._staging._buffers))
    assert [same(read(rig.folder, step), tensors(step)) for step in (1, 2, 3)] == [True] * 3
    assert len(pointers) == 1


def test_an_orphan_is_dropped_and_so_is_what_a_later_state_overtook(rig):
    saver = rig.checkpointer()
    rig.save(saver, 1, confirm=False)
    saver.orphan(lineage(1))
    rig.save(saver, 2, running=3, confirm=False)
    saver.confirm(lineage(2, running=4))  # another step 2 won
    rig.settle(saver)
    assert names(rig.folder) == []
    assert rig.sink.statuses() == [(1, "skipped"), (2, "skipped")]
    assert all("never confirmed" in event["reason"] for event in rig.sink.events)


def test_a_slow_save_is_published_although_later_steps_were_confirmed_meanwhile(rig):
    gate = rig.faults["save_write"] = threading.Event()
    saver = rig.checkpointer()
    saver.maybe_save(tensors=tensors(1), clocks=clocks(1), turn=True)
    for step in (1, 2, 3):
        saver.confirm(lineage(step))
    gate.set()
    rig.settle(saver)
    assert names(rig.folder) == [lineage(1).folder]


@pytest.mark.parametrize("later", [(), (2, 3)])
def test_what_is_not_the_state_that_was_agreed_on_is_never_published_however_slow_its_save(rig, later):
    gate = rig.faults["save_write"] = threading.Event()
    saver = rig.checkpointer()
    saver.maybe_save(tensors=tensors(1), clocks=clocks(1), turn=True)
    saver.confirm(lineage(1), checksum=12345)  # not that of what was staged
    for step in later:
        saver.confirm(lineage(step), checksum=step)
    gate.set()
    rig.settle(saver)
    assert names(rig.folder) == []
    assert rig.sink.statuses() == [(1, "failed")]
    assert "12345" in rig.sink.events[0]["reason"]


def test_a_turn_that_finds_the_previous_save_running_is_skipped_and_counted(rig):
    gate = rig.faults["save_write"] = threading.Event()
    saver = rig.checkpointer()
    for step in (1, 2, 3):
        saver.maybe_save(tensors=tensors(step), clocks=clocks(step), turn=True)  # returns although step 1 hangs
        saver.confirm(lineage(step))
    assert saver.maybe_save(tensors=tensors(4), clocks=clocks(4), turn=False) == 0.0
    gate.set()
    rig.settle(saver)
    rig.save(saver, 5)
    assert rig.sink.statuses() == [(1, "saved"), (2, "skipped"), (3, "skipped"), (5, "saved")]
    assert rig.sink.events[1]["reason"] == BUSY
    assert saver.counts == {"saved": 2, "skipped": 2, "failed": 0}


def test_blocking_mode_writes_before_it_returns(rig):
    saver = rig.checkpointer(async_mode="disabled")
    saver.maybe_save(tensors=tensors(1), clocks=clocks(1), turn=True)
    assert names(rig.folder) == [f".writing-g0.2-{lineage(1).folder}"]


def test_old_ones_go_milestones_and_foreign_folders_stay(rig):
    rig.folder.mkdir(parents=True)
    foreign = ["mine", ".hidden", "step-12", ".writing-notes"]
    for name in foreign:
        (rig.folder / name).mkdir()
    saver = rig.checkpointer(keep_latest_k=2, keep_every=4)
    most = 0
    for step in range(1, 11):
        rig.save(saver, step)
        most = max(most, len([n for n in names(rig.folder) if n not in foreign]))
    kept = [lineage(step).folder for step in (4, 8, 9, 10)]
    assert names(rig.folder) == sorted([*foreign, *kept])
    assert most <= 2 + 1 + 1


def test_a_branch_that_was_rolled_back_is_set_aside_when_the_new_one_is_durable(rig):
    saver = rig.checkpointer(keep_latest_k=3)
    for step in (10, 11, 12):
        rig.save(saver, step)
    rig.save(saver, 11, running=7)  # after a rollback to 10
    live = [lineage(10).folder, lineage(11, 7).folder]
    aside = [f".aside-{lineage(step).folder}" for step in (11, 12)]
    assert names(rig.folder) == sorted(live + aside)
    assert "rolled back" in (rig.folder / aside[0] / "REASON.txt").read_text()
    assert survey(rig.folder, secret=None).found[0].lineage == lineage(11, 7)


@pytest.mark.parametrize("place", ["save_stage", "save_write", "save_rename"])
def test_a_failed_save_is_reported_leaves_nothing_and_the_next_one_works(rig, place):
    saver = rig.checkpointer(keep_latest_k=1)
    rig.save(saver, 1)
    rig.faults[place] = OSError(28, "No space left on device")
    rig.save(saver, 2)
    assert names(rig.folder) == [lineage(1).folder]  # the good one is still there
    with pytest.raises(CheckpointError, match=r"step 2 could not be saved.*No space left") as error:
        saver.finish(tensors=tensors(2), clocks=clocks(2))
    assert error.value.code is Exit.CHECKPOINT
    rig.faults.clear()
    rig.save(saver, 3)
    assert names(rig.folder) == [lineage(3).folder]
    assert rig.sink.statuses() == [(1, "saved"), (2, "failed"), (2, "failed"), (3, "saved")]
    assert "No space left" in rig.sink.events[1]["reason"]


def test_a_folder_that_cannot_be_written_fails_saves_and_one_that_comes_back_works(rig):
    saver = rig.checkpointer()
    rig.save(saver, 1)
    shutil.rmtree(rig.folder)
    rig.folder.write_text("a file where the folder was")
    rig.save(saver, 2)
    assert rig.sink.statuses()[-1] == (2, "failed")
    rig.folder.unlink()
    rig.save(saver, 3)
    assert rig.sink.statuses()[-1] == (3, "saved")
    assert same(read(rig.folder, 3), tensors(3))


def test_a_folder_that_disappears_between_write_and_rename_is_a_failed_save(rig):
    saver = rig.checkpointer()
    rig.save(saver, 1, confirm=False)
    shutil.rmtree(rig.folder)
    saver.confirm(lineage(1))
    rig.settle(saver)
    assert rig.sink.statuses() == [(1, "failed")]


def test_the_final_save_publishes_what_waits_and_does_not_save_twice(rig):
    saver = rig.checkpointer()
    rig.save(saver, 4, confirm=False)
    saver.finish(tensors=tensors(4), clocks=clocks(4))
    assert names(rig.folder) == [lineage(4).folder]
    saver.finish(tensors=tensors(4), clocks=clocks(4))
    saver.finish(tensors=tensors(5), clocks=clocks(5))
    assert names(rig.folder) == [lineage(4).folder, lineage(5).folder]
    assert rig.sink.statuses() == [(4, "saved"), (5, "saved")]


def test_a_closed_writer_leaves_nothing_unfinished_and_refuses_a_final_save(rig):
    saver = rig.checkpointer()
    rig.save(saver, 4, confirm=False)
    assert saver.close(wait_s=30)
    assert names(rig.folder) == []
    with pytest.raises(CheckpointError, match="closed"):
        saver.finish(tensors=tensors(4), clocks=clocks(4))


def test_a_state_that_another_group_has_saved_is_not_saved_again(rig):
    rig.save(rig.checkpointer(writer="g1.1"), 4)
    saver = rig.checkpointer()
    rig.save(saver, 4)
    saver.finish(tensors=tensors(4), clocks=clocks(4))
    assert names(rig.folder) == [lineage(4).folder]
    assert rig.sink.statuses() == [(4, "saved"), (4, "skipped")]


def test_a_bad_folder_of_the_same_name_is_set_aside_not_written_over(rig):
    saver = rig.checkpointer()
    rig.save(saver, 4)
    (rig.folder / lineage(4).folder / ".metadata").unlink()
    rig.save(rig.checkpointer(writer="g1.1"), 4)
    assert names(rig.folder) == [f".aside-{lineage(4).folder}", lineage(4).folder]
    assert same(read(rig.folder, 4), tensors(4))


def test_what_dead_writers_left_is_removed_with_a_reason_and_the_living_are_left_alone(rig):
    rig.folder.mkdir(parents=True)
    left = {owner: f".writing-{owner}-{lineage(9).folder}" for owner in ("g0.1", "g1.7", "g2.1", "g0.9")}
    left["deleted"] = f".deleting-g1.7-{lineage(3).folder}"
    for name in [*left.values(), ".aside-" + lineage(2).folder, lineage(1).folder]:
        (rig.folder / name).mkdir()
        (rig.folder / name / "part").write_text("x")
    locks = [os.open(rig.folder / left[owner], os.O_RDONLY) for owner in ("g0.1", "g2.1", "g0.9")]
    for lock in locks:  # as living writers hold them
        fcntl.flock(lock, fcntl.LOCK_EX)
    saver = Checkpointer(rig.folder, group=None, writer="g0.2")
    rig.made.append(saver)
    removed = dict(saver.start())
    assert removed == {
        left["g0.1"]: "its writer g0.1 is a predecessor of g0.2",
        left["g1.7"]: "its writer g1.7 is dead",
        left["deleted"]: "its writer g1.7 is dead",
    }
    stay = [left["g2.1"], left["g0.9"], ".aside-" + lineage(2).folder, lineage(1).folder]
    assert names(rig.folder) == sorted(stay)
    for lock in locks:
        os.close(lock)


def test_a_folder_is_locked_while_it_is_written_and_until_it_is_published(rig):
    saver = rig.checkpointer()
    rig.save(saver, 1, confirm=False)
    path = rig.folder / f".writing-g0.2-{lineage(1).folder}"
    probe = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    saver.confirm(lineage(1))
    rig.settle(saver)
    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(probe)


def test_everything_is_on_disk_before_the_name_appears_and_the_manifest_comes_last(rig, monkeypatch):
    order: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        order.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(storage, "write_durably", _recording(order, storage.write_durably))
    saver = rig.checkpointer()
    rig.faults["save_rename"] = gate = threading.Event()
    saver.maybe_save(tensors=tensors(1), clocks=clocks(1), turn=True)
    saver.confirm(lineage(1))
    gate.set()
    rig.settle(saver)
    dot = f".writing-g0.2-{lineage(1).folder}"
    assert order == ["run", "__0_0.distcp", ".metadata.tmp", "write manifest.json", "manifest.json", dot, "checkpoints"]


def _recording(order, write):
    def recorded(path: Path, data: bytes) -> None:
        order.append(f"write {path.name}")
        write(path, data)

    return recorded


def test_a_secret_keys_the_digests(rig):
    saver = rig.checkpointer(secret=b"key")
    rig.save(saver, 1)
    path = rig.folder / lineage(1).folder
    found = tensors(0)
    load(path, found, group=None, secret=b"key")
    assert same(found, tensors(1))
    for secret, reason in ((None, "needs PHALANX_SECRET"), (b"other", "its seal does not fit")):
        with pytest.raises(CheckpointError, match=reason):
            load(path, found, group=None, secret=secret)
    flip(path / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged"):
        load(path, found, group=None, secret=b"key")
