"""The benchmarks, small: real processes, and the keys that scripts rely on. Nothing is asserted about speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from configs.dump import to_toml
from ops.bench.children import signal_all, tree
from ops.bench.ours import OurJob
from ops.bench.pin import strays
from ops.bench.watch import Watch, share_of_successor
from tests.support.lighthouse import ROOT, wait_until

LIMIT_S = 280


def bench(*words):
    """(what the command printed as JSON, its exit code)."""
    done = subprocess.run(
        [sys.executable, "-m", "ops", "bench", *words, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def plausible(found, *, n):
    assert found["n"] == n
    assert 0 <= found["min"] <= found["median"] <= found["max"] < 60


def test_many_groups_at_one_lighthouse():
    found = bench("lighthouse", "--groups", "5", "--seconds", "2")
    for key in ("quorum_s", "engine_quorum_s"):
        assert 0 < found[key]["p50"] <= found[key]["p99"] < 10
        assert found[key]["n"] == 5 * 4, "four windows of half a second begin one quorum each"
    assert found["groups"] == 5
    assert 0 <= found["cpu_share"] < 2
    assert found["gateway_extra_s"]["n"] == 200
    assert found["command"] == "phalanx bench lighthouse --groups 5 --seconds 2 --json"
    assert found["machine"]["cores"] >= 1


def test_a_benchmark_that_is_killed_leaves_nobody_behind(tmp_path):
    command = [sys.executable, "-m", "ops", "bench", "lighthouse", "--groups", "2", "--seconds", "100"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # a SIGKILL leaves its folder behind
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=env)
    try:
        children = wait_until(lambda: len(found := tree(process.pid)[1:]) == 2 and found)
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in children))
    finally:
        process.kill()
        process.communicate()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_state_moves_every_way_and_arrives_whole():
    found = bench("transfer", "--megabytes", "9", "--repeats", "2")
    assert [(e["bytes"], e["sources"]) for e in found["sizes"]] == [(9 * 10**6, n) for n in (1, 2)]
    for entry in found["sizes"]:
        for key in ("gb_per_s", "keyed_gb_per_s", "limited_gb_per_s", "http_transport_gb_per_s", "raw_socket_gb_per_s"):
            plausible(entry[key], n=2)
        assert entry["limited_gb_per_s"]["max"] < 1.5 * entry["sources"] * entry["limit_gb_per_s"]
        assert entry["http_transport_chunks"] in (0, 8)
        assert entry["raw_ratio"] > 0
        assert entry["http_transport_ratio"] > 0
        assert entry["receiver_extra_share"] == entry["receiver_extra_bytes"] / entry["bytes"]
        assert entry["http_transport_extra_bytes"] > 0.5 * entry["bytes"], "it allocates what it receives"
    assert found["command"] == "phalanx bench transfer --megabytes 9 --repeats 2 --json"
    assert found["machine"]["cores"] >= 1


@pytest.fixture
def config(rig, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(rig.config("bench", steps=10)))
    return str(path)


def test_a_kill_is_measured(config):
    found = bench("recovery", "--kills", "1", "--only", "kills", "--config", config)
    plausible(found["stall_s"], n=1)
    plausible(found["replica_recovery_s"], n=1)
    parts = found["recovery_parts_s"]
    assert list(parts) == ["notice", "fork", "process_groups", "model", "rehearse", "heal", "first_share"]
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(found["replica_recovery_s"]["median"])
    assert found["stock"] == {"stall_s": None, "replica_recovery_s": None, "step_s": None}


@pytest.mark.long  # 49 steps
def test_three_ways_of_saving_take_turns_in_one_run(rig, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(rig.config("saves", steps=10)))
    found = bench("checkpoint", str(path), "--cycles", "1")
    for key in ("step_s", "step_with_save_s", "blocking_step_s"):
        plausible(found[key], n=7)
    assert found["effective_interval_steps"] >= 1
    assert found["failed_turns"] == 0
    assert found["bytes"] > 0
    assert found["command"] == f"phalanx bench checkpoint {path} --cycles 1 --json"


def test_a_group_keeps_to_its_core_in_all_its_lives(config, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core cannot be left")
    one = frozenset(cores[-1:])
    keys = ("--training.steps", "1000000", "--launch.groups", "1")
    with OurJob(folder=tmp_path / "job", config=config, keys=keys, ranks=2, shares={"g0": one}) as job:
        job.lighthouse()
        job.join("g0", "g0")
        job.watch.until("a step", lambda logs: share_of_successor(logs, "g0", 0))
        first, incarnation = job.ranks("g0"), job.incarnation("g0")
        assert len(first) == 2
        signal_all(first, signal.SIGKILL)
        job.watch.until("its successor", lambda logs: share_of_successor(logs, "g0", incarnation))
        assert len(job.ranks("g0")) == 2
        assert not set(first) & set(job.ranks("g0"))
        assert strays(job.pids("g0"), one) == []


@pytest.mark.long  # five cold starts
def test_committed_work_is_measured_beside_stock_torchft_and_restarts(config):
    found = bench("chaos", "--wall-s", "16", "--mtbf-s", "8", "--calm-s", "4", "--config", config)
    assert (found["wall_s"], found["mtbf_s"], len(found["trace"])) == (16, 8, 2)
    for system in ("phalanx", "stock_torchft", "restart"):
        assert 0 < found[system]["committed_ratio"] < 2
        assert found[system]["native_ratio"] > 0
        assert 0 < found[system]["ceiling_ratio"] < 1
        assert found[system]["kills"] == 2
    assert found["save_interval_steps"] >= 1
    assert found["cores"] is None or len(set(map(tuple, found["cores"].values()))) == 2


@pytest.mark.long  # cold starts
@pytest.mark.parametrize("only", ["native", "stock_torchft", "phalanx"])
def test_a_benchmark_of_ranks_that_is_killed_leaves_nobody_behind(config, tmp_path, only):
    keep = tmp_path / "kept"
    words = ["bench", "chaos", "--calm-s", "1", "--only", only.replace("native", "restart"), "--config", config]
    words += ["--keep", str(keep)]
    process = subprocess.Popen([sys.executable, "-m", "ops", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    log = {"native": "native-before/events/native", "stock_torchft": "stock/events/g1", "phalanx": "phalanx/events/g1"}
    try:
        Watch(keep, failed=lambda: None).until("ranks", lambda _: (keep / f"{log[only]}.jsonl").exists() or None)
        children = tree(process.pid)[1:]
        assert len(children) >= 3
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in children))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long  # several cold starts
def test_every_fault_is_measured_beside_stock_torchft(config):
    found = bench("recovery", "--kills", "1", "--repeats", "1", "--config", config)
    for spread in ("stall_s", "replica_recovery_s", "node_loss_stall_s", "cold_torchrun_recovery_s"):
        plausible(found[spread], n=1)
    plausible(found["hang_stall_s"], n=2)
    assert found["confirmed_after_burial"] == 0
    plausible(found["stock"]["stall_s"], n=1)
    plausible(found["stock"]["replica_recovery_s"], n=1)
    assert found["stall_ratio"] > 1
    assert found["recovery_ratio"] > 1
