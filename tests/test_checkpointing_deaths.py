"""A writer is killed at any point of a save: the old one stays until the new one is there, the disk stays flat."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from checkpointing import folder as folders
from checkpointing.resume import survey, verify
from checkpointing.writer import Checkpointer
from tests.support.states import clocks, lineage, names, tensors


def writer(folder: Path, incarnation: int, **options) -> Checkpointer:
    saver = Checkpointer(folder, group=None, writer=f"g0.{incarnation}", **options)
    saver.start()
    return saver


def in_a_process(body, folder: Path) -> int:
    """Run ``body`` in a forked child: its pid. It never comes back."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body(folder)
    finally:
        os._exit(0)


def hang(folder: Path) -> None:
    (folder.parent / "here").touch()
    time.sleep(60)


@pytest.mark.parametrize("place", ["save_write", "save_rename", "delete"])
def test_with_one_kept_the_old_one_stays_until_the_new_one_is_durable(tmp_path, monkeypatch, place):
    folder = tmp_path / "run" / "checkpoints"
    saver = writer(folder, 1, keep_latest_k=1)
    saver.finish(tensors=tensors(1), clocks=clocks(1))
    assert saver.close(wait_s=30)

    def second_save(folder: Path) -> None:
        saver = writer(folder, 2, keep_latest_k=1, failpoint=lambda name, **_: hang(folder) if name == place else None)
        saver.finish(tensors=tensors(2), clocks=clocks(2))

    if place == "delete":  # the new one has its name; the old one is on its way out
        monkeypatch.setattr(folders, "_remove", lambda path: hang(folder) if path.name.startswith(".del") else None)
    pid = in_a_process(second_save, folder)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "here").exists():
        assert time.monotonic() < deadline, "the writer never came to this point"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    monkeypatch.undo()
    seen = survey(folder, secret=None)
    assert [found.lineage for found in seen.found] == [lineage(2 if place == "delete" else 1)]
    assert seen.passed_over == ()
    saver = writer(folder, 3, keep_latest_k=1)
    saver.finish(tensors=tensors(3), clocks=clocks(3))
    assert saver.close(wait_s=30)
    assert names(folder) == [lineage(3).folder], "what the dead one left is gone"


def test_killed_at_twenty_random_moments_there_is_always_a_valid_one_and_never_one_too_many(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    draw = random.Random(7)

    def save_for_ever(folder: Path) -> None:
        start = survey(folder, secret=None).found[0].lineage.step if folder.exists() else 0
        saver = writer(folder, int((tmp_path / "incarnation").read_text()), keep_latest_k=3)
        for step in range(start + 1, start + 1000):
            saver.finish(tensors=tensors(step), clocks=clocks(step))
            (tmp_path / "saved").write_text(str(step))

    newest = 0
    for incarnation in range(1, 21):
        (tmp_path / "incarnation").write_text(str(incarnation))
        pid = in_a_process(save_for_ever, folder)
        time.sleep(draw.uniform(0.01, 0.12))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said = int((tmp_path / "saved").read_text() or 0) if (tmp_path / "saved").exists() else 0
        found = survey(folder, secret=None, verify_newest=0).found
        step = found[0].lineage.step if found else 0
        assert step >= max(said, newest), "what was said to be saved is there"
        assert all(verify(each.path, secret=None) for each in found)
        assert len([name for name in names(folder) if name.startswith("step-")]) <= 4
        newest = step
    assert newest > 5, "nothing was ever saved"
