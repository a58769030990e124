"""The loss of everything at once: supervisor, lighthouse and all ranks, four times in a row, then the run goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpointing.resume import survey
from configs.dump import to_toml
from configs.run_folder import Event, RunFolder, read_events
from configs.words import Exit
from tests.support.rig import Run

REPOSITORY = Path(__file__).parents[1]


def launch(config_file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ops", "launch", str(config_file), "--json"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def last_step(folder: RunFolder) -> int:
    steps = [e["step"] for e in read_events(folder.event_log("lighthouse")) if e["event"] == "confirmed"]
    return max(steps, default=0)


def pids(folder: RunFolder) -> set[int]:
    starts = [e for g in ("g0", "g1") for e in read_events(folder.event_log(g)) if e["event"] == "start"]
    return {pid for e in starts for pid in e["pids"]}


def gone(folder: RunFolder) -> None:
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids(folder)):
        assert time.monotonic() < deadline, "a rank outlived its supervisor"
        time.sleep(0.02)


def test_killed_as_a_whole_four_times_the_trajectory_is_the_same_to_the_bit(rig, tmp_path):
    steps = 60
    alone = rig.run("whole-alone", groups=1, steps=steps)
    config = rig.config("whole", steps=steps)
    file = tmp_path / "whole.toml"
    file.write_text(to_toml(config))
    folder = RunFolder(Path(config.job.dump_folder))
    for at in (8, 18, 30, 42):
        process = launch(file)
        while last_step(folder) < at:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        gone(folder)
    process = launch(file)
    _, stderr = process.communicate()
    assert process.returncode == Exit.DONE, stderr.decode()
    whole = Run(process.returncode, "", folder, stderr.decode())
    ledger = whole.ledger
    assert (ledger.missing, ledger.duplicated, ledger.order_matches, ledger.steps) == (0, 0, True, steps), ledger
    assert whole.series("digest") == alone.series("digest")
    sources = [e["source"] for g in ("g0", "g1") for e in whole.events(g, "restore")]
    assert sources.count("disk") >= 4


@pytest.mark.long
@pytest.mark.timeout(900)  # fifty cold starts
def test_killed_at_fifty_random_moments_nothing_that_was_saved_is_lost(rig, tmp_path):
    steps, kills = 400, 50
    chance = random.Random(20)
    alone = rig.run("random-alone", groups=1, ranks=1, steps=steps)
    config = rig.config("random", ranks=1, steps=steps, checkpoint__keep_latest_k=3)
    file = tmp_path / "random.toml"
    file.write_text(to_toml(config))
    folder = RunFolder(Path(config.job.dump_folder))
    done = 0
    while done < kills:
        began, start = last_step(folder), time.monotonic()
        process = launch(file)
        moment = chance.uniform(0.0, 0.6)
        while last_step(folder) == began and process.poll() is None and time.monotonic() < start + 30:
            time.sleep(0.005)
        time.sleep(moment)  # the random moment itself: nothing is waited for
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        gone(folder)
        done += 1
        saved = [e["step"] for g in ("g0", "g1") for e in read_events(folder.event_log(g)) if is_saved(e)]
        there = survey(folder.root / "checkpoints", secret=None)
        assert there.passed_over == ()
        if saved:
            assert there.found[0].lineage.step >= sorted(saved)[-1] - 1, (saved[-3:], there.found[0].lineage)
        assert len(list((folder.root / "checkpoints").glob("step-*"))) <= 3 + 1
    process = launch(file)
    _, stderr = process.communicate()
    assert process.returncode == Exit.DONE, stderr.decode()
    assert done >= 40
    whole = Run(process.returncode, "", folder, stderr.decode())
    assert whole.series("digest") == alone.series("digest")
    assert (whole.ledger.missing, whole.ledger.duplicated, whole.ledger.order_matches) == (0, 0, True)


def is_saved(event: Event) -> bool:
    return event["event"] == "checkpoint" and event["status"] == "saved"
