"""The commands a user types, as processes: a demo with two kills, torchrun, a lighthouse with groups that come to it,
and bad input that is refused with the file and key in the message."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from configs.dump import to_toml
from configs.run_folder import RunFolder, read_events
from configs.words import Exit

REPOSITORY = Path(__file__).parents[1]


def phalanx(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops", *map(str, words)],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def written(rig, tmp_path, name, **options) -> tuple[Path, RunFolder]:
    config = rig.config(name, **options)
    file = tmp_path / f"{name}.toml"
    file.write_text(to_toml(config))
    return file, RunFolder(Path(config.job.dump_folder))


def test_a_demo_with_two_kills_ends_with_its_report_and_the_same_digest(rig, tmp_path):
    file, folder = written(rig, tmp_path, "demo-small", steps=90, chaos__scenario="demo")
    done = phalanx("launch", file, "--json")
    assert done.returncode == Exit.DONE, done.stderr
    report = json.loads(done.stdout)
    assert report["steps"] == 90
    assert report["digests_agree"] is True
    assert report["digest"] == report["undisturbed_digest"]
    assert [kill["group"] for kill in report["kills"]] == ["g1", "g0"]
    assert [kill["heal_sources"] for kill in report["kills"]] == [["g0"], ["g1"]]
    assert all(kill["heal_bytes"] > 0 and kill["recovery_s"] > 0 for kill in report["kills"])
    assert report["loss_last"] < report["loss_first"]
    ledger = json.loads(phalanx("ledger", folder.root, "--json").stdout)
    assert {k: ledger[k] for k in ("steps", "missing", "duplicated", "order_matches")} == {
        "steps": 90,
        "missing": 0,
        "duplicated": 0,
        "order_matches": True,
    }
    assert phalanx("report", folder.root).returncode == Exit.DONE
    rows = json.loads(phalanx("checkpoint", "ls", folder.root, "--json").stdout)
    assert len(rows["checkpoints"]) == 5
    newest = sorted((folder.root / "checkpoints").glob("step-*"))[-1]
    out = tmp_path / "whole.pt"
    assert phalanx("checkpoint", "to-torch", newest, out).returncode == Exit.DONE
    assert set(torch.load(out, weights_only=True)) == {"model"}


def test_torchrun_runs_one_group_with_a_lighthouse_of_its_own(rig, tmp_path):
    file, folder = written(rig, tmp_path, "torchrun", groups=1, steps=6)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "trainer", "--job.config_file", str(file)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commits = [e for e in read_events(folder.event_log("g0")) if e["event"] == "commit"]
    assert [e["step"] for e in commits] == [1, 2, 3, 4, 5, 6]


def test_groups_come_to_a_lighthouse_and_tell_where_their_metrics_are(rig, tmp_path):
    file, folder = written(rig, tmp_path, "apart", ranks=1, steps=40)
    address = tmp_path / "address"
    command = [sys.executable, "-m", "ops"]
    lighthouse = subprocess.Popen(
        [*command, "lighthouse", "--bind", "127.0.0.1:0", "--http", "127.0.0.1:0", "--address-file", str(address),
         "--events", str(folder.event_log("lighthouse"))],
        cwd=REPOSITORY, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    groups = []
    try:
        while not address.exists():
            assert lighthouse.poll() is None
            time.sleep(0.02)
        url = address.read_text().split()[0]
        for name in ("g0", "g1"):
            env = {**os.environ, "PHALANX_GROUP": name, "PHALANX_LIGHTHOUSE": url}
            groups.append(subprocess.Popen([*command, "group", str(file)], cwd=REPOSITORY, env=env))
        seen = ""
        while not seen:
            assert groups[0].poll() is None
            starts = [e for e in read_events(folder.event_log("g0")) if e["event"] == "start"]
            commits = [e for e in read_events(folder.event_log("g0")) if e["event"] == "commit"]
            if commits:
                with urllib.request.urlopen(starts[0]["endpoint"]["metrics"] + "/metrics") as answer:
                    seen = answer.read().decode()
            time.sleep(0.02)
        assert 'phalanx_commits_total{group="g0",outcome="updated",run="rig"}' in seen
        assert [group.wait() for group in groups] == [0, 0]
    finally:
        for process in (*groups, lighthouse):
            process.terminate()
            process.wait()


def test_a_corrupt_token_store_is_named_and_nothing_starts(rig, tmp_path):
    cache = tmp_path / "cache"
    file, folder = written(rig, tmp_path, "corrupt", groups=1, ranks=1, steps=2, job__cache_folder=cache)
    assert phalanx("launch", file).returncode == Exit.DONE
    tokens = max((p for p in cache.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(tokens.read_bytes())
    data[len(data) // 2] ^= 1
    tokens.write_bytes(data)
    again = phalanx("launch", file, "--training.steps", 4)
    assert again.returncode == Exit.BAD_CONFIG, again.stderr
    assert str(tokens.parent) in again.stderr
    assert tokens.read_bytes() == bytes(data), "a corrupt store is the user's to delete"
    assert not [e for e in read_events(folder.event_log("g0")) if e["event"] == "commit" and e["step"] > 2]


def test_a_taken_lighthouse_port_is_exit_2_with_the_address(rig, tmp_path):
    file, _ = written(rig, tmp_path, "port", groups=1, ranks=1, steps=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = phalanx("launch", file, "--bind", address)
        alone = phalanx("lighthouse", "--bind", address)
    assert (done.returncode, alone.returncode) == (Exit.BAD_CONFIG, Exit.BAD_CONFIG), done.stderr
    assert address in done.stderr
    assert address in alone.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--training.stepz", "3"], ["training.stepz", "training.steps"]),
        (["--training.steps", "many"], ["training.steps"]),
        (["--parallelism.data_parallel_shard_degree", "3"], ["parallelism.data_parallel_shard_degree"]),
        (["--training.dataset_path", "/nowhere/at/all"], ["training.dataset_path", "/nowhere/at/all"]),
        (
            ["--checkpoint.initial_load_path", "/nowhere/at/all"],
            ["checkpoint.initial_load_path = '/nowhere/at/all': no such folder"],
        ),
    ],
)
def test_bad_input_names_the_key_and_starts_nothing(rig, tmp_path, words, expected):
    file, folder = written(rig, tmp_path, "bad", ranks=2, steps=2)
    done = phalanx("launch", file, *words)
    assert done.returncode == Exit.BAD_CONFIG, done.stderr
    for text in expected:
        assert text in done.stderr
    assert not list(folder.events.glob("g*.jsonl"))
