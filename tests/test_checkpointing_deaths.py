"""A writer is killed at any point of a save: the old one stays until the new one is there, the disk stays flat."""

from __future__ import annotations

import multiprocessing as mp
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from checkpointing import folder as folders
from checkpointing.resume import load, survey, verify
from checkpointing.writer import Checkpointer
from tests.support.ranks import PRELOAD
from tests.support.states import clocks, lineage, names, same, tensors


def writer(folder: Path, incarnation: int, **options) -> Checkpointer:
    saver = Checkpointer(folder, group=None, writer=f"g0.{incarnation}", **options)
    saver.start()
    return saver


def in_a_process(body: Callable[..., None], *args: object) -> BaseProcess:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=body, args=args, daemon=True)
    process.start()
    return process


def wait(process: BaseProcess, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not seen():
        assert process.is_alive(), "it ended before it came to this point"
        assert time.monotonic() < deadline, "the writer never came to this point"
        time.sleep(0.002)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def save_and_hang(folder: Path, place: str) -> None:
    """The second life's save, which stops at one place for ever. The body of a process."""

    def here(*_: object, **__: object) -> None:
        (folder.parent / "here").touch()
        signal.pause()

    if place == "delete":  # the new one has its name; the old one is on its way out
        remove = folders._remove
        folders._remove = lambda path: here() if path.name.startswith(folders.DELETING) else remove(path)
    saver = writer(folder, 2, keep_latest_k=1, failpoint=lambda name, **_: here() if name == place else None)
    saver.finish(tensors=tensors(2), clocks=clocks(2))


@pytest.mark.parametrize("place", ["save_write", "save_rename", "delete"])
def test_with_one_kept_the_old_one_stays_until_the_new_one_is_durable(tmp_path, place):
    folder = tmp_path / "run" / "checkpoints"
    saver = writer(folder, 1, keep_latest_k=1)
    saver.finish(tensors=tensors(1), clocks=clocks(1))
    assert saver.close(wait_s=30)
    process = in_a_process(save_and_hang, folder, place)
    wait(process, (tmp_path / "run" / "here").exists)
    kill(process)
    seen = survey(folder, secret=None)
    step = 2 if place == "delete" else 1
    assert [found.lineage for found in seen.found] == [lineage(step)]
    assert seen.passed_over == ()
    into = tensors(0)
    load(seen.found[0].path, into, group=None, secret=None)
    assert same(into, tensors(step))
    saver = writer(folder, 3, keep_latest_k=1)
    saver.finish(tensors=tensors(3), clocks=clocks(3))
    assert saver.close(wait_s=30)
    assert names(folder) == [lineage(3).folder], "what the dead one left is gone"


def save_for_ever(folder: Path, incarnation: int) -> None:
    """Goes on from the newest; says which step is saved after each. The body of a process."""
    found = survey(folder, secret=None).found
    saver = writer(folder, incarnation, keep_latest_k=3)
    for step in range(found[0].lineage.step + 1 if found else 1, 10_000):
        saver.finish(tensors=tensors(step), clocks=clocks(step))
        with (folder.parent / "saved").open("a") as said:
            said.write(f"{step}\n")


def said(folder: Path) -> int:
    """The last step that was said to be saved; a torn line does not count."""
    path = folder.parent / "saved"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return int(lines[-1]) if lines else 0


@pytest.mark.long
def test_killed_at_twenty_random_moments_there_is_always_a_valid_one_and_never_one_too_many(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    draw = random.Random(7)
    newest = 0
    for incarnation in range(1, 21):
        process = in_a_process(save_for_ever, folder, incarnation)
        at = newest + draw.randint(1, 5)
        wait(process, lambda at=at: said(folder) >= at)
        time.sleep(draw.uniform(0, 0.02))  # the random moment itself
        kill(process)
        found = survey(folder, secret=None, verify_newest=0).found
        assert found[0].lineage.step >= max(said(folder), newest), "what was said to be saved is there"
        assert all(verify(each.path, secret=None) for each in found)
        assert len([name for name in names(folder) if name.startswith("step-")]) <= 4
        newest = found[0].lineage.step
    assert newest >= 20
