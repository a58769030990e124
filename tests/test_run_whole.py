"""The loss of everything at once: supervisor, lighthouse and all ranks, four times in a row, then the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from configs.dump import to_toml
from configs.run_folder import RunFolder, read_events
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
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in pids(folder)):
            assert time.monotonic() < deadline, "a rank outlived its supervisor"
            time.sleep(0.02)
    process = launch(file)
    _, stderr = process.communicate()
    assert process.returncode == Exit.DONE, stderr.decode()
    whole = Run(process.returncode, "", folder, stderr.decode())
    ledger = whole.ledger
    assert (ledger.missing, ledger.duplicated, ledger.order_matches, ledger.steps) == (0, 0, True, steps), ledger
    assert whole.series("digest") == alone.series("digest")
    sources = [e["source"] for g in ("g0", "g1") for e in whole.events(g, "restore")]
    assert sources.count("disk") >= 4
