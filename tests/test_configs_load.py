"""Loading: precedence, every problem at once with its place and the nearest name, and the way back to TOML."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from configs import names
from configs.dump import to_toml
from configs.keys import leaves
from configs.load import Config, ConfigError, examine, find, load, parse_text, split_config_file


def problems(text: str = "", *overrides: str):
    with pytest.raises(ConfigError) as caught:
        parse_text(text, overrides, where="my.toml")
    return {problem.key: problem for problem in caught.value.problems}, str(caught.value)


def test_defaults_then_file_then_command_line():
    text = "[training]\nsteps = 7\nseq_len = 64\n"
    config = parse_text(text, ["--training.steps", "9"])
    assert (config.training.steps, config.training.seq_len) == (9, 64)
    assert config.training.local_batch_size == Config().training.local_batch_size


def test_all_problems_come_at_once_each_with_its_place():
    text = """
[training]
stepz = 3
seq_len = "128"
[optimizer]
lr = -1.0
[nonsense]
a = 1
[checkpoint]
folder = "../elsewhere"
[compile]
enable = true
"""
    found, message = problems(text, "--launch.groupz", "2", "--metrics.port", "high", "stray", "--training.max_norm")
    assert set(found) == {
        "training.stepz",
        "training.seq_len",
        "optimizer.lr",
        "nonsense",
        "checkpoint.folder",
        "compile.enable",
        "launch.groupz",
        "metrics.port",
        "stray",
        "training.max_norm",
    }
    assert {p.where for p in found.values()} == {"my.toml", "command line"}
    assert found["training.stepz"].nearest == "training.steps"
    assert found["launch.groupz"].nearest == "launch.groups"
    assert "a whole number" in found["training.seq_len"].expected
    assert ">= 0" in found["optimizer.lr"].expected
    assert found["training.max_norm"].expected == "expected a value: --training.max_norm VALUE"
    assert len(message.splitlines()) == len(found)
    assert "my.toml: training.stepz: unknown key (did you mean training.steps?)" in message


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("training.lr", "optimizer.lr"),  # the same name in another section
        ("checkpoint.enable_checkpoint", "checkpoint.enable"),  # torchtitan's older name
        ("training.compile", "compile.enable"),
        ("checkpoint.keep_latest", "checkpoint.keep_latest_k"),
        ("chekpoint.interval", "checkpoint.interval"),
        ("trainning", "training"),
        ("float8", "quantize.linear.float8"),
    ],
)
def test_nearest_name_of_a_key(key, nearest):
    found, _ = problems("", f"--{key}", "1")
    assert found[key].nearest == nearest


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("--optimizer.name", "adamw"), "AdamW"),
        (("--model.flavor", "debg"), "debug"),
        (("--model.name", "lama3"), "llama3"),
        (("--training.dataset", "python_stdlb"), "python_stdlib"),
        (("--fault_tolerance.reduction", "exakt"), "exact"),
    ],
)
def test_nearest_name_of_a_value(arguments, nearest):
    found, _ = problems("", *arguments)
    (problem,) = found.values()
    assert problem.nearest == nearest


@pytest.mark.parametrize(
    "text",
    [
        "[training]\nsteps = true",  # a boolean is no number
        "[training]\nsteps = 3.0",
        "[optimizer]\nlr = nan",
        "[checkpoint]\nenable = 1",
        "[model]\nconverters = 'float8'",  # a string is no list
        "[chaos]\nfailpoints = [1]",
        "training = 3",
        "[training.steps]\na = 1",
    ],
)
def test_files_are_strict(text):
    found, _ = problems(text)
    assert len(found) == 1


def test_toml_that_is_none_says_where():
    found, message = problems("[training\nsteps = 3")
    assert list(found) == ["(syntax)"]
    assert "line 1" in message


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--checkpoint.enable"], "enable", True),
        (["--checkpoint.enable", "false"], "enable", False),
        (["--checkpoint.enable=False"], "enable", False),
        (["--checkpoint.no_enable"], "enable", False),
        (["--checkpoint.keep-latest-k", "3"], "keep_latest_k", 3),
        (["--checkpoint.keep_every", "none"], "keep_every", None),
        (["--checkpoint.load_step", "-1"], "load_step", -1),
        (["--checkpoint.interval", "2", "--checkpoint.interval", "4"], "interval", 4),
    ],
)
def test_forms_of_the_command_line(arguments, key, value):
    assert getattr(parse_text("[checkpoint]\nkeep_every = 8", arguments).checkpoint, key) == value


def test_lists_and_nested_tables_on_the_command_line():
    arguments = [
        *("--quantize.linear.float8.recipe_name", "rowwise"),
        *("--quantize.linear.float8.filter_fqns", "output,auto_filter_small_kn"),
        *("--launch.devices", "3,1"),
        *("--launch.groups", "2"),
        *("--parallelism.module_fqns_per_model_part", '[["tok_embeddings"], ["output"]]'),
        *("--optimizer.lr", "3e-4"),
    ]
    config = parse_text("", arguments)
    assert config.quantize.linear.float8.recipe_name == "rowwise"
    assert config.quantize.linear.float8.filter_fqns == ("output", "auto_filter_small_kn")
    assert config.launch.devices == (3, 1)
    assert config.parallelism.module_fqns_per_model_part == (("tok_embeddings",), ("output",))
    assert config.optimizer.lr == 3e-4


def test_a_config_cannot_be_changed_and_can_be_sent():
    config = load("debug")
    with pytest.raises(pydantic.ValidationError):
        config.training.steps = 3
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("name", ["debug", "demo", "bench"])
def test_shipped_configs_load_and_survive_the_resolved_copy(name):
    config = load(name, ["--chaos.failpoints", "g1:backward@20.1#0:kill", "--training.dataset_path", 'a "b"\\c'])
    assert parse_text(to_toml(config)) == config
    assert find(name) == names.shipped()[name]


def test_the_resolved_copy_names_every_key_that_has_a_value():
    text = to_toml(Config())
    for key in leaves():
        last = key.rpartition(".")[2]
        assert f"{last} = " in text or leaves()[key].default in (None, 0), key


def test_a_missing_file_names_the_shipped_ones(tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean debug"):
        load("debugg")
    with pytest.raises(ConfigError, match="bench, debug, demo"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "bad.toml")


def test_a_file_wins_over_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "debug").write_text("[training]\nsteps = 5\n")
    monkeypatch.chdir(tmp_path)
    assert load("debug").training.steps == 5


def test_the_config_file_of_python_m_trainer():
    rest = ["--training.steps", "3"]
    assert split_config_file(["--job.config_file", "a.toml", *rest]) == ("a.toml", rest)
    assert split_config_file([*rest, "--job.config-file=a.toml"]) == ("a.toml", rest)
    assert split_config_file(rest) == (None, rest)


def test_torchtitans_names_for_fault_tolerance():
    text = "[fault_tolerance]\nenable = true\ngroup_size = 3\nmin_replica_size = 2\nprocess_group_timeout_ms = 45000\n"
    config = parse_text(text)
    assert config.launch.groups == 3
    assert config.fault_tolerance.min_groups == 2
    assert config.fault_tolerance.collective_timeout_s == 45.0
    assert parse_text("[fault_tolerance]\ngroup_size = 0").launch.groups == 1
    assert parse_text(text, ["--launch.groups", "4"]).launch.groups == 4


def test_two_names_of_one_setting_must_agree():
    found, _ = problems("[fault_tolerance]\ngroup_size = 3\n[launch]\ngroups = 2\n")
    assert list(found) == ["launch.groups"] or list(found) == ["fault_tolerance.group_size"]


def test_a_bad_value_is_not_reported_twice_through_what_depends_on_it():
    found, _ = problems("[fault_tolerance]\ngroup_size = 'two'\nmin_groups = 2\n")
    assert list(found) == ["fault_tolerance.group_size"]


def test_examine_lists_what_load_raises():
    loaded = examine("debug", ["--compile.enable", "--training.stepz", "3"])
    assert [p.key for p in loaded.problems] == ["training.stepz"]
    assert [p.key for p in loaded.unsupported] == ["compile.enable"]


def test_configs_import_no_torch():
    code = "import configs.load, configs.digest, configs.dump, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
