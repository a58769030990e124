"""Who may use a run folder, and with which config."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.load import parse_text
from configs.run_folder import RunFolder
from configs.words import Exit, ExitRequest
from ops.launch.folder import FolderLock, old_processes, settle_config, started_t, wait_for_old
from ops.launch.initial import check_initial
from tests.support.logs import commit, write

HOLD = """
import sys, time
from pathlib import Path
from ops.launch.folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def config(**sections):
    import tomli_w

    return parse_text(tomli_w.dumps(sections))


def test_a_second_launcher_is_told_who_holds_the_folder_and_the_kernel_frees_it(folder):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder.lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ExitRequest, match=f"in use by pid {holder.pid} on {socket.gethostname()}") as caught:
            FolderLock(folder.lock)
        assert caught.value.code == 2
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    FolderLock(folder.lock).release()
    FolderLock(folder.lock).release()


def start(pid: int, *, t: float, host: str | None = None) -> dict:
    return {"t": t, "event": "start", "pids": [pid], "host": host or socket.gethostname()}


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", Path("/proc/none")):
        with pytest.raises(ExitRequest, match="choose another") as caught:
            FolderLock(RunFolder(root).lock)
        assert caught.value.code == Exit.BAD_CONFIG


def test_old_processes_are_found_waited_for_and_never_killed(folder):
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        write(folder.root, "g0", [start(sleeper.pid, t=time.time())])
        said: list[str] = []
        with pytest.raises(ExitRequest, match=rf"still run: pid {sleeper.pid} \(g0\)") as caught:
            wait_for_old(folder, say=said.append, limit_s=0.1)
        assert caught.value.code == 2
        assert len(said) == 1
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
    wait_for_old(folder, say=said.append, limit_s=0.1)


def test_a_reused_pid_another_host_and_the_dead_are_not_old_processes(folder):
    now, here = time.time(), socket.gethostname()
    began = started_t(os.getpid())
    assert began is not None
    write(folder.root, "g0", [start(os.getpid(), t=began - 60)])  # named before this process began: another's pid
    write(folder.root, "g1", [start(os.getpid(), t=now, host="elsewhere"), start(2**22 - 3, t=now)])
    assert old_processes(folder, host=here) == []
    write(folder.root, "g2", [start(os.getpid(), t=now)])
    assert [p.pid for p in old_processes(folder, host=here)] == [os.getpid()]
    assert old_processes(folder, host=here, groups=frozenset({"g1"})) == []


def test_the_resolved_config_is_written_first(folder):
    assert settle_config(folder, config(training={"steps": 7})) == []
    assert parse_text(folder.config.read_text()) == config(training={"steps": 7})


def test_what_may_change_is_warned_of(folder):
    settle_config(folder, config(training={"steps": 7}))
    write(folder.root, "g0", [commit(1, {"g0": [0]})])
    warnings = settle_config(folder, config(training={"steps": 9}, launch={"max_restarts": 3}, metrics={"log_freq": 2}))
    text = "\n".join(warnings)
    assert len(warnings) == 3
    assert "training.steps: 7 -> 9" in text
    assert parse_text(folder.config.read_text()).training.steps == 9


def test_another_training_is_refused_and_nothing_is_written(folder):
    settle_config(folder, config(optimizer={"lr": 0.1}))
    before = folder.config.read_text()
    write(folder.root, "g0", [commit(1, {"g0": [0]})])
    with pytest.raises(ExitRequest, match=r"optimizer\.lr") as caught:
        settle_config(folder, config(optimizer={"lr": 0.2}))
    assert caught.value.code == 6
    assert folder.config.read_text() == before


def test_a_fork_and_a_folder_without_history_are_accepted(folder):
    settle_config(folder, config(optimizer={"lr": 0.1}))
    assert "nothing was ever committed" in settle_config(folder, config(optimizer={"lr": 0.2}))[0]
    write(folder.root, "g0", [commit(1, {"g0": [0]})])
    warnings = settle_config(folder, config(optimizer={"lr": 0.3}, checkpoint={"fork": True}))
    assert "forking" in warnings[0]


def test_a_damaged_config_protects_the_history(folder):
    write(folder.root, "g0", [commit(1, {"g0": [0]})])
    folder.config.write_text("[job\n")
    with pytest.raises(ExitRequest, match="cannot be read") as caught:
        settle_config(folder, config())
    assert caught.value.code == 6


def test_a_folder_to_begin_from_must_be_there_while_the_run_has_no_checkpoint(folder, tmp_path):
    given = tmp_path / "other"

    def refusal(**checkpoint):
        with pytest.raises(ExitRequest) as caught:
            check_initial(config(checkpoint={"initial_load_path": str(given), **checkpoint}), folder)
        assert caught.value.code == 2
        return caught.value.reason

    for keys in ({}, {"initial_load_in_hf": True}, {"initial_load_in_hf": True, "enable": False}):
        assert refusal(**keys) == f"checkpoint.initial_load_path = {str(given)!r}: no such folder"
    assert not folder.root.exists()
    for keys in ({"enable": False}, {"folder": "s3://bucket/run"}, {"initial_load_path": "s3://bucket/other"}):
        check_initial(config(checkpoint={"initial_load_path": str(given), **keys}), folder)
    check_initial(config(), folder)

    for name in ("disk-g0", "disk-g1"):
        (given / name).mkdir(parents=True)
    check_initial(config(checkpoint={"initial_load_path": str(given)}), folder)
    (given / "config.toml").write_text('[checkpoint]\nfolder = "disk-{group}"\n')
    assert refusal().endswith(f"name one: {given}/disk-g0, {given}/disk-g1")

    (folder.root / "mine" / "g0" / "step-00000003-17.3").mkdir(parents=True)
    assert refusal()
    own = {"initial_load_path": str(given), "folder": "mine/{group}"}
    check_initial(config(checkpoint=own), folder)  # it goes on from its own
