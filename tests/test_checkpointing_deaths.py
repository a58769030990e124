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
    folder, said = tmp_path / "run" / "checkpoints", tmp_path / "saved"
    draw = random.Random(7)

    def newest_in(folder: Path) -> int:
        found = survey(folder, secret=None).found
        return found[0].lineage.step if found else 0

    def save_for_ever(folder: Path) -> None:
        start, incarnation = newest_in(folder), int((tmp_path / "incarnation").read_text())
        saver = writer(folder, incarnation, keep_latest_k=3)
        for step in range(start + 1, start + 1000):
            saver.finish(tensors=tensors(step), clocks=clocks(step))
            with said.open("a") as file:
                file.write(f"{step}\n")

    def told() -> int:
        return int(([0, *said.read_text().split()] if said.exists() else [0])[-1])

    newest = 0
    for incarnation in range(1, 21):
        (tmp_path / "incarnation").write_text(str(incarnation))
        pid, ahead, deadline = in_a_process(save_for_ever, folder), draw.randint(0, 4), time.monotonic() + 60
        while ahead and told() < newest + ahead:
            assert time.monotonic() < deadline, "it saves no more"
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.02))  # the random moment itself
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found, step = survey(folder, secret=None, verify_newest=0).found, newest_in(folder)
        assert step >= max(told(), newest), "what was said to be saved is there"
        assert all(verify(each.path, secret=None) for each in found)
        assert len([name for name in names(folder) if name.startswith("step-")]) <= 4
        newest = step
    assert newest >= 20
