"""The supervisor with real processes and real kills; the ranks are scripts instead of trainers."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from configs.load import parse_text
from configs.run_folder import EventLog, RunFolder, read_events
from configs.schema import Config
from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.launch.group import GroupSupervisor, Surroundings
from ops.launch.group_command import run_group
from ops.launch.life import Layout
from ops.launch.policy import Policy
from ops.launch.warm import Warm
from tests.support.fake_ranks import Script, fake_rank, lives

PATIENCE_S = 60.0
KILLED = -signal.SIGKILL


def until(what, *, limit_s: float = PATIENCE_S):
    """Wait for something; the limit only ends a test that hangs."""
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)
    return found


@pytest.fixture(scope="module")
def warm():
    return Warm(preload=())


class Run:
    """One supervisor under test, on a thread."""

    def __init__(self, root: Path, warm: Warm, script: Script, *, grace_s: float = 20.0, **policy) -> None:
        self.folder = RunFolder(root)
        self.said: list[str] = []
        self.left: list[dict] = []
        self.supervisor = GroupSupervisor(
            Layout(group="g1", world=2, local_ranks=2, devices=(0, 1), lighthouse=None),
            Surroundings(
                folder=self.folder,
                warm=warm,
                function=fake_rank,
                config=script,
                policy=Policy(backoff_s=0.01, **policy),
                grace_s=grace_s,
                sink=EventLog(self.folder.event_log("launcher"), group=None),
                say=self.said.append,
                leave=lambda **fields: self.left.append(fields),
            ),
        )
        self.ends: list = []
        self.thread = threading.Thread(target=lambda: self.ends.append(self.supervisor.run()), daemon=True)
        self.thread.start()

    def life(self, number: int) -> dict:
        """The ``start`` event of a life, once it is there."""
        until(lambda: len(lives(self.folder, "g1")) > number)
        return lives(self.folder, "g1")[number]

    def end(self):
        self.thread.join(PATIENCE_S)
        return self.ends[0]

    def told(self, name: str) -> list[dict]:
        return [e for e in read_events(self.folder.event_log("launcher")) if e["event"] == name]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_killed_rank_replaces_the_whole_group(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path))
    first = run.life(0)
    os.kill(first["pids"][1], signal.SIGKILL)
    second = run.life(1)
    assert not any(map(alive, first["pids"]))
    assert not set(first["pids"]) & set(second["pids"])
    run.supervisor.drain()
    assert run.end().code == 75
    assert run.left[0]["cause"] == "killed"
    assert run.left[0]["life"]
    restart = run.told("restart")[0]
    assert (restart["group"], restart["incarnation"], restart["code"]) == ("g1", 1, KILLED)
    assert restart["recovery_s"] > 0
    assert [e["code"] for e in run.told("exit")] == [KILLED, 75]


@pytest.mark.parametrize("code", [2, 6])
def test_a_code_that_ends_the_run_is_not_restarted_even_if_a_fellow_only_saw_the_loss(tmp_path, warm, code):
    run = Run(tmp_path, warm, Script(root=tmp_path, codes={0: {0: code, 1: 7}}))
    end = run.end()
    assert (end.code, end.ends_run) == (code, True)
    assert len(lives(run.folder, "g1")) == 1
    assert any(f"rank 0 ends with {code}" in line for line in run.said)


def test_exit_7_comes_again_and_done_ends(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path, codes={0: {0: 7, 1: 7}, 1: {0: 0, 1: 0}}))
    assert run.end().code == 0
    assert len(lives(run.folder, "g1")) == 2
    assert not any(alive(pid) for life in lives(run.folder, "g1") for pid in life["pids"])


def test_max_restarts_without_a_commit(tmp_path, warm):
    script = Script(root=tmp_path, codes={n: {0: 7} for n in range(9)}, commits=False)
    run = Run(tmp_path, warm, script, max_restarts=2)
    end = run.end()
    assert (end.code, end.ends_run) == (7, True)
    assert len(lives(run.folder, "g1")) == 3
    assert [e["recovery_s"] for e in run.told("restart")] == [None, None]


def test_a_fault_from_inside_announces_and_kills_all(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path))
    first = run.life(0)
    announced: list[bool] = []
    assert run.supervisor.strike(signal.SIGKILL, announce=lambda: announced.append(all(map(alive, first["pids"]))))
    run.life(1)
    assert announced == [True]
    run.supervisor.stop()
    assert run.end().code == 75
    assert not any(alive(pid) for life in lives(run.folder, "g1") for pid in life["pids"])


def test_a_group_whose_node_is_gone_starts_again_when_the_node_is_back(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path))
    run.life(0)
    run.supervisor.hold(True)
    assert run.supervisor.strike(signal.SIGKILL)
    until(lambda: run.told("exit"))
    time.sleep(0.5)  # a life starts in a tenth of it
    back = time.time()
    run.supervisor.hold(False)
    assert run.life(1)["t"] > back
    run.supervisor.hold(True)  # one that is held can be drained
    run.supervisor.drain()
    assert run.end().code == 75


def test_one_rank_can_be_struck_alone(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path))
    first = run.life(0)
    assert run.supervisor.strike(signal.SIGSTOP, rank=1)
    until(lambda: psutil.Process(first["pids"][1]).status() == psutil.STATUS_STOPPED)
    assert psutil.Process(first["pids"][0]).status() != psutil.STATUS_STOPPED
    run.supervisor.stop()
    assert run.end().code == 75
    assert not run.supervisor.strike(signal.SIGKILL), "nobody is there"


def test_a_group_that_does_not_drain_is_killed_after_the_grace(tmp_path, warm):
    run = Run(tmp_path, warm, Script(root=tmp_path, hold=True), grace_s=0.2)
    life = run.life(0)
    run.supervisor.drain()
    assert run.end().code == 75
    assert not any(map(alive, life["pids"]))


def test_a_rank_that_is_stopped_when_the_run_is_over_is_ended_after_the_grace(tmp_path, warm):
    """The lighthouse has ended with the run: nobody else misses it."""
    run = Run(tmp_path, warm, Script(root=tmp_path), grace_s=0.3)
    pids = run.life(0)["pids"]
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(0.6)
    assert all(map(alive, pids)), "while the run goes on that is the lighthouse's to judge"
    run.supervisor.run_is_done()
    assert run.end().code == Exit.DONE
    assert not any(map(alive, pids))


def test_the_warm_server_has_one_thread_and_dies_with_its_children(warm, tmp_path):
    run = Run(tmp_path, warm, Script(root=tmp_path))
    run.life(0)
    assert warm.server_threads() == 1
    run.supervisor.stop()
    run.end()


def lead_ends_with_3(config, spec):
    """Rank 0 chooses its own end; its fellow waits."""
    root = Path(config.job.dump_folder)
    fake_rank(Script(root=root, codes={0: {0: 3}} if spec.rank == 0 else {}), spec)


def bad_data(config, log):
    log("reading")
    raise ExitRequest(Exit.BAD_CONFIG, "shard 3 is damaged")


def group_options(**fields):
    base = {"group": "g1", "lighthouse": None, "nnodes": 1, "node_rank": 0, "rdzv_endpoint": None}
    return argparse.Namespace(**(base | fields))


def real_config(root: Path) -> Config:
    return Config.model_validate({"job": {"dump_folder": str(root)}, "launch": {"ranks_per_group": 2}})


def test_the_group_command_ends_with_rank_0s_code_and_restarts_nothing(tmp_path):
    result = run_group(
        real_config(tmp_path), group_options(), Console(sys.stderr), function=lead_ends_with_3, prepare=no_data
    )
    assert result.code == 3
    assert len(lives(RunFolder(tmp_path), "g1")) == 1
    assert parse_text((tmp_path / "config.toml").read_text()) == real_config(tmp_path)


def test_data_that_cannot_be_used_ends_a_launch_before_any_rank(tmp_path):
    result = run_group(
        real_config(tmp_path), group_options(), Console(sys.stderr), function=lead_ends_with_3, prepare=bad_data
    )
    assert (result.code, result.data["error"]) == (2, "shard 3 is damaged")
    assert not lives(RunFolder(tmp_path), "g1")


LAUNCHER = """
import sys
from configs.schema import Config
from ops.console import Console
from ops.launch.requests import Requests
from ops.launch.run import LocalRun, Orders, layouts_of
from ops.launch.warm import Warm
from tests.test_ops_supervisor import fake_by_config, no_data

config = Config.model_validate({"job": {"dump_folder": sys.argv[1]}, "launch": {"groups": 2, "ranks_per_group": 2}})
orders = Orders(config=config, layouts=layouts_of(config, ["g0", "g1"]), function=fake_by_config, prepare=no_data)
requests = Requests()
with requests.heard():
    run = LocalRun(orders, warm=Warm(preload=()), console=Console(sys.stderr), requests=requests)
    sys.exit(run.run()[0])
"""


def no_data(config, log):
    """Nothing to prepare."""
    log("no data")


def fake_by_config(config, spec):
    """A rank that stays, of a run whose config is a real one."""
    fake_rank(Script(root=Path(config.job.dump_folder)), spec)


@pytest.fixture
def launcher(tmp_path):
    """A launcher in a process of its own: two groups of two ranks and a real lighthouse."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    yield process, RunFolder(tmp_path)
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stderr.close()


def up(folder: RunFolder) -> list[int]:
    """The pids of all ranks and of the lighthouse, once all are there."""
    starts = [life for group in ("g0", "g1") for life in lives(folder, group)]
    lighthouse = [e for e in read_events(folder.event_log("launcher")) if e["event"] == "lighthouse"]
    if len(starts) < 2 or not lighthouse:
        return []
    return [pid for event in (*starts, *lighthouse) for pid in event["pids"]]


def test_a_killed_launcher_leaves_no_process_and_can_be_started_again(launcher):
    process, folder = launcher
    pids = until(lambda: up(folder))
    everything = {p.pid for p in psutil.Process(process.pid).children(recursive=True)} | set(pids)
    assert len(everything) >= 6
    process.kill()
    until(lambda: not any(map(alive, everything)))


def test_sigterm_drains_all_groups_and_endpoints_are_true(launcher):
    process, folder = launcher
    until(lambda: up(folder))
    until(lambda: '"g1"' in folder.endpoints.read_text() and '"g0"' in folder.endpoints.read_text())
    assert '"gateway": "http://127.0.0.1:' in folder.endpoints.read_text()
    until(lambda: '"group": "g1"' in (folder.events / "prometheus_sd.json").read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 75
    assert folder.endpoints.read_text() == "{}\n"
    names = [e["event"] for e in read_events(folder.event_log("launcher"))]
    assert "notice" in names
    assert names[-1] == "exit"


def test_the_lighthouse_is_kept_alive_on_its_address(launcher):
    process, folder = launcher
    until(lambda: up(folder))

    def said() -> list[dict]:
        return [e for e in read_events(folder.event_log("launcher")) if e["event"] == "lighthouse"]

    os.kill(said()[0]["pids"][0], signal.SIGKILL)
    until(lambda: len(said()) == 2)
    assert said()[0]["gateway"] == said()[1]["gateway"]
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130


FULL_SERVER = """
from ops.launch.warm import Warm, wait_for
from tests.test_ops_supervisor import ends_with_4_unless_warm
warm = Warm()
child = warm.start(ends_with_4_unless_warm)
wait_for([child], None)
print(child.code(), warm.server_threads())
"""


def ends_with_4_unless_warm() -> None:
    """Runs in a fork of the real server: what a rank imports is there, and no device was touched."""
    torch = sys.modules.get("torch")
    os._exit(0 if torch and "trainer.main" in sys.modules and not torch.cuda.is_initialized() else 4)


def test_the_real_warm_server_has_everything_and_one_thread():
    done = subprocess.run([sys.executable, "-c", FULL_SERVER], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
