"""The lighthouse is killed and started again in the middle of a run: groups pause, come back, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from configs.run_folder import RunFolder, read_events
from configs.words import Exit
from tests.support.field import Field, one_history
from tests.support.rig import holds


def kill_lighthouse_at(folder: RunFolder, steps: list[int], killed: list[int]) -> None:
    """SIGKILL the running lighthouse once each of ``steps`` is confirmed."""
    for step in steps:
        while True:
            confirmed = [e["step"] for e in read_events(folder.event_log("lighthouse")) if e["event"] == "confirmed"]
            if max(confirmed, default=0) >= step:
                break
            time.sleep(0.005)
        pids = [e["pids"][0] for e in read_events(folder.event_log("launcher")) if e["event"] == "lighthouse"]
        os.kill(pids[-1], signal.SIGKILL)
        killed.append(pids[-1])
        while Path(f"/proc/{pids[-1]}").exists() and len(killed) < len(steps):
            time.sleep(0.005)


def test_a_lighthouse_killed_three_times_loses_nothing(rig):
    steps = 80
    alone = rig.run("lighthouse-alone", groups=1, ranks=1, steps=steps)
    config = rig.config("lighthouse", groups=2, ranks=1, steps=steps, chaos__failpoints=["g1:reduce@45:kill"])
    killed: list[int] = []
    killer = threading.Thread(
        target=kill_lighthouse_at, args=(RunFolder(Path(config.job.dump_folder)), [10, 30, 44], killed), daemon=True
    )
    killer.start()
    run = rig.run_config(config)
    assert run.code == Exit.DONE, run.said
    assert len(set(killed)) == 3
    holds(run, steps=steps)
    assert run.series("digest") == alone.series("digest")
    ids = [e["attempt"] for e in run.events("lighthouse", "quorum")]
    assert ids == sorted(set(ids)), "ids strictly increase over restarts"
    assert len({e["epoch"] for e in run.events("lighthouse", "quorum")}) == 4
    assert {e["incarnation"] for e in run.events("g0", "commit")} == {1}, "the survivor never restarted"


@pytest.mark.long
def test_a_lighthouse_killed_five_times_at_random_phases_once_with_a_group(rig):
    """Training goes on about as soon as it is back; 10 s are for a busy machine, the figure is printed."""
    draw = random.Random(11)
    with Field(rig, "lighthouse-five", ranks=2, fault_tolerance__failure_detection_s=2.0) as field:
        field.start("g0", "g1")
        waits = []
        for number in range(5):
            step = field.events("g0", "commit")[-1]["step"] if number else 0
            field.wait_commit("g0", step=step + draw.randrange(3, 9))
            time.sleep(draw.random() * 0.1)  # the phase of the attempt
            if number == 3:
                field.kill("g1")
            field.kill_lighthouse()
            if number == 3:
                field.wait_exit("g1")
            field.light()
            back = time.time()
            if number == 3:
                field.start("g1")
            commit = field.wait_commit("g0", after=back)
            waits.append(commit["t"] - back)
            if number == 3:
                field.wait_commit("g1", after=back)
        print(f"\nfrom the lighthouse's return to a commit: {', '.join(f'{wait:.2f}' for wait in waits)} s")
        assert max(waits) < 10
        run = field.drain()
    one_history(run)
    assert len({e["epoch"] for e in run.events("lighthouse", "quorum")}) == 6
    assert {e["incarnation"] for e in run.events("g0", "commit")} == {1}, "the survivor never restarted"
    assert {e["incarnation"] for e in run.events("g1", "commit")} == {1, 2}
