"""The command line: help with examples, refusals, exit codes, and one JSON object whatever happens."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys

import psutil
import pytest

from configs.load import load
from ops.__main__ import main
from ops.cli import find, split_keys
from ops.commands import COMMANDS
from ops.console import reserved_stdout
from ops.launch.group_command import layout_of
from ops.launch.run import layouts_of
from ops.result import UsageError

LATER = [c for c in COMMANDS if c.module is None]
BENCHES = ("recovery", "overhead", "transfer", "checkpoint", "lighthouse", "throughput", "parity", "chaos")
CHECKPOINTS = ("ls", "verify", "to-torch", "to-hf", "from-hf", "from-meta")
CONTRACT = {
    *("launch", "group", "lighthouse", "top", "ledger", "report", "estimate", "data", "generate", "fetch"),
    *(f"chaos {name}" for name in ("run", "list", "show")),
    *(f"checkpoint {name}" for name in CHECKPOINTS),
    *(f"bench {name}" for name in BENCHES),
}
ADDED = {"chaos judge"}


def call(capfd, *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_every_command_of_the_contract_is_known():
    assert {c.name for c in COMMANDS} == CONTRACT | ADDED


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.path, "--help"])
    assert caught.value.code == 0
    assert f"example: {command.example}" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_examples_are_of_the_command_and_parse(command):
    words = command.example.split()
    words = [word for word in words[words.index("phalanx") + 1 :] if "=" not in word]
    assert find(COMMANDS, words) is command


@pytest.mark.parametrize("command", LATER, ids=lambda c: c.name)
def test_later_commands_are_refused_by_name(command, capfd):
    code, out, err = call(capfd, *command.path, "something", "--some-option", "3")
    assert (code, out) == (2, "")
    assert f"`phalanx {command.name}` does not exist yet" in err
    code, out, _ = call(capfd, *command.path, "--json")
    assert code == json.loads(out)["exit"] == 2


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("checkpoint",),
        ("launch",),
        ("launch", "no-such-config"),
        ("launch", "debug", "--bogus"),
        ("launch", "debug", "--training.stepz", "3"),
        ("launch", "debug", "--backend", "slurm"),
        ("launch", "debug", "--backend", "nothing"),
        ("launch", "debug", "--launch.nodes_per_group", "2", "--launch.ranks_per_group", "2"),
        ("group", "debug", "--nnodes", "3"),
        ("ledger", "/no/such/run"),
        ("report", "/no/such/run"),
        ("checkpoint", "ls", "/no/such/run"),
        ("checkpoint", "to-torch", "/no/such/checkpoint", "out.pt"),
    ],
)
def test_bad_usage_is_exit_2_with_one_object(words, capfd):
    code, out, _ = call(capfd, *words, "--json")
    data = json.loads(out)
    assert code == data["exit"] == 2
    assert data["error"]
    code, out, err = call(capfd, *words)
    assert (code, out) == (2, "")
    assert err.strip()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("lanch demo", ["phalanx: no command is called 'lanch' (did you mean launch?)"]),
        (
            "checkpoint lst outputs/demo",
            ["phalanx: no command is called 'checkpoint lst' (did you mean checkpoint ls?)"],
        ),
        ("verify outputs/demo", ["phalanx: no command is called 'verify' (did you mean checkpoint verify?)"]),
        ("launch debug --dryrun", ["command line: --dryrun: unknown option (did you mean --dry-run?)"]),
        (
            "checkpoint to-hf outputs/demo/x OUT --export-dtype bf16",
            [
                "phalanx: argument --export-dtype: expected one of float32, bfloat16, float16, found 'bf16' "
                "(did you mean bfloat16?) (see phalanx checkpoint to-hf --help)"
            ],
        ),
        (
            "checkpoint to-hf --export-dtpe bfloat16 outputs/demo OUT",
            ["command line: --export-dtpe: unknown option (did you mean --export-dtype?)"],
        ),
        (
            "launch debug --checkpoint.initial_load_in_hf maybe --optimizer.lr fast --training.setps 3",
            [
                "command line: checkpoint.initial_load_in_hf: expected true or false, found 'maybe'",
                "command line: optimizer.lr: expected a number, found 'fast'",
                "command line: training.setps: unknown key (did you mean training.steps?)",
            ],
        ),
        (
            "launch debug --dryrun --optimizer.lr fast --groupe g1",
            [
                "command line: --dryrun: unknown option (did you mean --dry-run?)",
                "command line: --groupe: unknown option (did you mean --group?)",
                "command line: optimizer.lr: expected a number, found 'fast'",
            ],
        ),
        ("report a b", ["command line: b: expected nothing more (see phalanx report --help)"]),
        (
            "launch --checkpoint.enable debug more",
            ["command line: more: expected nothing more (see phalanx launch --help)"],
        ),
        ("--nonsense", ["command line: --nonsense: unknown option (see phalanx --help)"]),
    ],
)
def test_a_typing_error_is_told_once_with_the_nearest_name(line, told, capfd):
    code, out, err = call(capfd, *line.split())
    assert (code, out) == (2, "")
    assert "phalanx: phalanx" not in err
    assert sorted(err.splitlines()) == sorted(told)


def test_all_config_problems_at_once(capfd):
    code, out, _ = call(capfd, "launch", "debug", "--training.stepz", "3", "--optimizer.lr", "fast", "--json")
    problems = json.loads(out)["problems"]
    assert (code, len(problems)) == (2, 2)
    assert any("training.steps" in problem for problem in problems)


def test_stdout_is_the_objects_alone():
    """Not even a child's or a library's print reaches stdout; the module is the same command as the script."""
    done = subprocess.run(
        [sys.executable, "-m", "ops", "launch", "--list", "--json"], capture_output=True, text=True, check=True
    )
    assert {"debug", "demo"} <= set(json.loads(done.stdout)["configs"])


def test_help_with_json(capfd):
    code, out, _ = call(capfd, "ledger", "--help", "--json")
    assert code == 0
    assert "example:" in json.loads(out)["help"]


def test_a_dry_run_classifies_each_key_and_touches_nothing(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("launch", "demo", "--dry-run", "--training.dataset", "c4", "--backend", "slurm", "--json")
    code, out, _ = call(capfd, *words)
    data = json.loads(out)
    assert (code, data["would_start"]) == (0, False)
    assert data["keys"]["training.dataset"] == "not supported yet"
    assert data["keys"]["optimizer.lr"] == "used"
    code, out, _ = call(capfd, "launch", "demo", "--dry-run")
    assert code == 0
    assert "at step 20 SIGKILL of g1" in out
    assert list(tmp_path.iterdir()) == []
    assert call(capfd, "launch", "demo", "--dry-run", "--nonsense.key", "1")[0] == 2


@pytest.mark.parametrize(
    ("words", "rest", "keys"),
    [
        ("debug --training.steps 9", "debug", "--training.steps 9"),
        ("--training.steps 9 debug", "debug", "--training.steps 9"),
        ("--training.steps=9 debug", "debug", "--training.steps=9"),
        ("--checkpoint.enable debug", "debug", "--checkpoint.enable"),
        ("--checkpoint.enable false debug", "debug", "--checkpoint.enable false"),
        ("--checkpoint.no_enable debug", "debug", "--checkpoint.no_enable"),
        ("--checkpoint.load_step -1 debug", "debug", "--checkpoint.load_step -1"),
        ("debug --dry-run --job.name x --list", "debug --dry-run --list", "--job.name x"),
        ("debug --job.name --list", "debug --list", "--job.name"),
    ],
)
def test_config_keys_may_stand_anywhere(words, rest, keys):
    assert split_keys(words.split()) == (rest.split(), keys.split())


def options(**fields) -> argparse.Namespace:
    base = {"group": "g1", "lighthouse": None, "nnodes": 1, "node_rank": 0, "rdzv_endpoint": None}
    return argparse.Namespace(**(base | fields))


def test_the_ranks_of_a_group_over_nodes():
    config = load("debug", ["--launch.ranks_per_group", "4"])
    second = layout_of(config, options(nnodes=2, node_rank=1, rdzv_endpoint="host0:29400"))
    assert (second.world, second.first_rank, second.local_ranks, second.devices) == (4, 2, 2, (0, 1))
    assert second.meet == ("host0", 29400)
    for bad in ({"nnodes": 3}, {"nnodes": 2}, {"node_rank": 1}, {"nnodes": 2, "rdzv_endpoint": "nowhere"}):
        with pytest.raises(UsageError):
            layout_of(config, options(**bad))


def test_devices_by_group_and_rank():
    config = load("debug")
    assert [layout.devices for layout in layouts_of(config, ["g0", "g1"])] == [(0, 1), (2, 3)]
    assert layouts_of(config, ["g1"])[0].devices == (2, 3)
    assert layouts_of(config, ["g7"])[0].devices == (0, 1)
    named = load("debug", ["--launch.devices", "7,6,5,4"])
    assert layouts_of(named, ["g1"])[0].devices == (5, 4)


def test_a_reserved_stdout_is_out_of_reach_of_everything_else(capfd):
    with reserved_stdout(True) as result:
        print("a library")
        os.write(1, b"C code\n")
        subprocess.run(["echo", "a child"], check=True)
        print("{}", file=result)
    print("afterwards")
    captured = capfd.readouterr()
    assert captured.out == "{}\nafterwards\n"
    assert {"a library", "C code", "a child"} <= set(captured.err.splitlines())


def off_loopback() -> str | None:
    """An interface of this machine that others may reach."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and not a.address.startswith("127.") for a in addresses):
            return name
    return None


@pytest.mark.parametrize("command", ["launch", "group"])
def test_an_interface_off_loopback_needs_a_secret_before_anything_starts(capfd, tmp_path, monkeypatch, command):
    name = off_loopback()
    if name is None:
        pytest.skip("no interface but loopback")
    monkeypatch.delenv("PHALANX_SECRET", raising=False)
    monkeypatch.setenv("PHALANX_LIGHTHOUSE", "http://127.0.0.1:1")
    keys = ["--job.dump_folder", str(tmp_path / "run"), "--fault_tolerance.interface", name]
    code, _, err = call(capfd, command, "debug", *keys)
    assert code == 2
    assert f"fault_tolerance.interface = {name!r}" in err
    assert err.count("is not a loopback address: set PHALANX_SECRET") == 1
    monkeypatch.setenv("PHALANX_SECRET_FILE", str(tmp_path / "none"))
    code, _, err = call(capfd, command, "debug", *keys[:2])
    assert code == 2
    assert str(tmp_path / "none") in err
    assert not (tmp_path / "run").exists()
