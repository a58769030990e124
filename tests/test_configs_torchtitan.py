"""torchtitan 0.2 files load as they stand; what does not exist yet is refused only where it would act."""

from __future__ import annotations

import pytest

from configs import unsupported
from configs.keys import leaves, value_of
from configs.load import Config, ConfigError, classify, load, parse_text

LLAMA3_8B = """
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[profiling]
enable_profiling = false
save_traces_folder = "profile_trace"
profile_freq = 100

[metrics]
log_freq = 10
enable_tensorboard = false
save_tb_folder = "tb"

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = true
folder = "checkpoint"
interval = 500
last_save_model_only = true
export_dtype = "float32"
async_mode = "disabled"

[compile]
enable = false
components = ["model", "loss"]

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
precompute_float8_dynamic_scale_for_fsdp = false
filter_fqns = ["output"]

[comm]
init_timeout_seconds = 300

[fault_tolerance]
enable = false
replica_id = 0
group_size = 2

[experimental]
custom_args_module = ""

[validation]
enable = false
dataset = "c4_validation"
freq = 500
steps = 1200
"""


def test_a_torchtitan_file_says_of_each_key_what_it_is(tmp_path):
    file = tmp_path / "llama3_8b.toml"
    file.write_text(LLAMA3_8B)
    found = dict(classify(file))
    assert set(found.values()) == {"used", "no equivalent", "not supported yet"}
    expected = {
        "training.dataset": "not supported yet",
        "activation_checkpoint.mode": "not supported yet",
        "activation_checkpoint.selective_ac_option": "not supported yet",
        "checkpoint.last_save_model_only": "used",
        "validation.freq": "not supported yet",
        "quantize.linear.float8.filter_fqns": "not supported yet",
        "validation.enable": "used",
        "compile.enable": "used",
        "parallelism.tensor_parallel_degree": "used",
        "model.flavor": "used",
        "optimizer.lr": "used",
        "fault_tolerance.group_size": "used",
        "fault_tolerance.enable": "no equivalent",
        "comm.init_timeout_seconds": "no equivalent",
    }
    assert {key: found[key] for key in expected} == expected
    given = [line.split(" ")[0] for line in LLAMA3_8B.splitlines() if " = " in line]
    assert len(found) == len(given)  # no key is passed over


def test_such_a_file_is_refused_to_run_with_exactly_what_would_act():
    with pytest.raises(ConfigError) as caught:
        parse_text(LLAMA3_8B)
    assert {p.key for p in caught.value.problems} == {
        "training.dataset",
        "activation_checkpoint.mode",
    }
    overrides = ["--training.dataset=python_stdlib", "--activation_checkpoint.mode=none"]
    assert parse_text(LLAMA3_8B, overrides).training.seq_len == 8192


def test_a_dry_run_still_refuses_what_is_wrong(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("[training]\nstepz = 3\ndataset = 'c4'\n")
    with pytest.raises(ConfigError) as caught:
        classify(file)
    assert [p.key for p in caught.value.problems] == ["training.stepz"]


ACTING = {
    "job.custom_config_module": "my.config",
    "model.name": "qwen3",
    "model.flavor": "debugmodel",
    "model.converters": "quantize.linear.float8",
    "optimizer.early_step_in_backward": "true",
    "training.dataset": "c4",
    "training.dtype": "bfloat16",
    "training.enable_cpu_offload": "true",
    "validation.enable": "true",
    "memory_estimation.enable": "true",
    "parallelism.data_parallel_replicate_degree": "2",
    "parallelism.tensor_parallel_degree": "2",
    "parallelism.pipeline_parallel_degree": "2",
    "parallelism.context_parallel_degree": "2",
    "parallelism.expert_parallel_degree": "2",
    "parallelism.expert_tensor_parallel_degree": "2",
    "parallelism.enable_compiled_autograd": "true",
    "activation_checkpoint.mode": "full",
    "compile.enable": "true",
    "comm.mode": "fake_backend",
    "profiling.enable_profiling": "true",
    "profiling.enable_memory_snapshot": "true",
    "metrics.enable_tensorboard": "true",
    "metrics.enable_wandb": "true",
    "debug.deterministic_warn_only": "true",
    "experimental.custom_args_module": "my.args",
    "launch.nodes_per_group": "2",
    "fault_tolerance.semi_sync_method": "diloco",
    "checkpoint.create_seed_checkpoint": "true",
    "checkpoint.load_only": "true",
    "checkpoint.initial_load_in_hf_quantized": "true",
}
SWITCHES = {
    "checkpoint.initial_load_in_hf_quantized": ["--checkpoint.initial_load_in_hf", "--model.hf_assets_path=."],
    "debug.deterministic_warn_only": ["--debug.deterministic"],
}


def test_every_gate_has_a_value_that_acts():
    assert {key for key, _, _ in unsupported.GATES} == set(ACTING)


@pytest.mark.parametrize("key", ACTING)
def test_a_key_without_its_feature_is_refused_where_it_acts(key):
    with pytest.raises(ConfigError) as caught:
        parse_text("", [f"--{key}", ACTING[key], *SWITCHES.get(key, [])])
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.expected.startswith("not supported yet: ")


def test_the_same_keys_are_fine_where_they_do_not_act():
    off = ["--checkpoint.no_enable", "--checkpoint.initial_load_path=there", "--checkpoint.load_step=5"]
    idle = [
        "--validation.freq=5",
        "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
        "--compile.components=loss",
    ]
    assert parse_text("", [*off, *idle, "--debug.deterministic_warn_only"])


def test_no_default_is_refused():
    assert unsupported.refusals(Config()) == []


CONTRACT = """
job: name, dump_folder, cache_folder, description
model: name, flavor, hf_assets_path, converters
optimizer: name, lr, beta1, beta2, eps, weight_decay, implementation
lr_scheduler: warmup_steps, decay_ratio, decay_type, min_lr_factor
training: local_batch_size, global_batch_size, seq_len, max_norm, steps, dataset, dataset_path, mixed_precision_param, mixed_precision_reduce, enable_cpu_offload, epochs, nonfinite, nonfinite_limit
parallelism: data_parallel_shard_degree, data_parallel_replicate_degree, tensor_parallel_degree, pipeline_parallel_degree, pipeline_parallel_schedule, pipeline_parallel_microbatch_size, context_parallel_degree, context_parallel_rotate_method, expert_parallel_degree, enable_async_tensor_parallel, disable_loss_parallel, fsdp_reshard_after_forward, module_fqns_per_model_part
activation_checkpoint: mode, selective_ac_option
compile: enable, components
quantize.linear.float8: enable_fsdp_float8_all_gather, precompute_float8_dynamic_scale_for_fsdp, recipe_name, filter_fqns, emulate
checkpoint: enable, folder, interval, interval_s, keep_latest_k, keep_every, load_step, async_mode, last_save_model_only, export_dtype, exclude_from_loading, last_save_in_hf, initial_load_in_hf, initial_load_path, create_seed_checkpoint, trust, fork
metrics: log_freq, port, enable_tensorboard, enable_wandb
debug: seed, deterministic, digest_interval
launch: groups, ranks_per_group, nodes_per_group, devices, threads_per_rank, max_restarts, backoff_s, kill_grace_s, price_per_group_hour
chaos: scenario
fault_tolerance: min_groups, batch, reduction, failure_detection_s, first_step_limit_s, start_wait_s, process_group, interface, transfer_rate_limit, divergence_check, enable, group_size, min_replica_size, replica_id, process_group_timeout_ms, semi_sync_method
"""  # noqa: E501


def test_every_promised_key_exists():
    promised = {
        f"{section}.{name}"
        for section, names in (line.split(": ") for line in CONTRACT.strip().splitlines())
        for name in names.split(", ")
    }
    assert promised <= set(leaves())


def test_promised_defaults():
    config = Config()
    promised = {
        "checkpoint.folder": "checkpoints",
        "checkpoint.interval": 1,
        "checkpoint.keep_latest_k": 5,
        "checkpoint.load_step": -1,
        "checkpoint.last_save_model_only": False,
        "training.nonfinite": "skip",
        "debug.digest_interval": 0,
        "fault_tolerance.min_groups": 1,
        "fault_tolerance.batch": "constant",
        "fault_tolerance.failure_detection_s": 2.0,
        "training.dataset": "python_stdlib",
        "job.cache_folder": "~/.cache/phalanx",
        "chaos.scenario": "none",
        "launch.max_restarts": None,
    }
    assert {key: value_of(config, key) for key in promised} == promised


def test_the_shipped_small_configs_are_as_promised():
    debug, demo, bench = load("debug"), load("demo"), load("bench")
    assert (debug.launch.groups, debug.launch.ranks_per_group) == (2, 2)
    assert debug.chaos.scenario == "none"
    assert (demo.chaos.scenario, demo.training.steps, demo.debug.digest_interval) == ("demo", 60, 1)
    assert debug.fault_tolerance.reduction == demo.fault_tolerance.reduction == "exact"
    assert bench.model.flavor == "bench"
