"""Which keys would switch on a feature that does not exist yet, and what each given key is to this trainer.

A key is refused only where it would act: a validation frequency beside ``enable = false`` is fine. Remove a line from
``GATES`` when its feature arrives, and the ``Later`` marks of its keys in the schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from configs import known
from configs.fields import Later, NoEquivalent
from configs.keys import mark, value_of
from configs.schema import Config
from configs.sources import Given

USED = "used"
NO_EQUIVALENT = "no equivalent"
NOT_YET = "not supported yet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A key whose value asks for what does not exist."""

    key: str
    feature: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """What one given key is: ``status`` is "used", "no equivalent" or "not supported yet"."""

    key: str
    status: str
    why: str = ""


def refusals(config: Config) -> list[Refusal]:
    """The keys that would act without their feature."""
    return [
        Refusal(key=key, feature=feature)
        for key, feature, acts in GATES
        if acts(value_of(config, key)) and _reachable(key, config)
    ]


def uses(config: Config, given: Sequence[Given]) -> list[Use]:
    """Each given key, under the name it was written with."""
    refused = {refusal.key: refusal.feature for refusal in refusals(config)}
    return [_use(item, refused) for item in given]


def _use(given: Given, refused: dict[str, str]) -> Use:
    if given.key in refused:
        return Use(key=given.written, status=NOT_YET, why=refused[given.key])
    later, nothing = mark(given.key, Later), mark(given.key, NoEquivalent)
    if later is not None:
        return Use(key=given.written, status=NOT_YET, why=later.feature)
    if nothing is not None:
        return Use(key=given.written, status=NO_EQUIVALENT, why=nothing.why)
    return Use(key=given.written, status=USED)


def _reachable(key: str, config: Config) -> bool:
    """Whether a key's own switch is on."""
    if key == "debug.deterministic_warn_only":
        return config.debug.deterministic
    if key == "checkpoint.initial_load_in_hf_quantized":
        return config.checkpoint.initial_load_in_hf
    return config.checkpoint.enable or not key.startswith("checkpoint.")


def _above_one(degree: int) -> bool:
    return degree > 1


def _off_default(default: Any) -> Callable[[Any], bool]:
    return lambda value: bool(value != default)


GATES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("job.custom_config_module", "config classes of the user's own", bool),
    ("model.name", "this model", lambda name: name in known.LATER_MODELS),
    ("model.flavor", "this flavor", lambda flavor: any(flavor in names for names in known.LATER_FLAVORS.values())),
    ("model.converters", "model converters such as float8", bool),
    ("optimizer.early_step_in_backward", "an optimizer step inside the backward", bool),
    ("training.dataset", "this data set", lambda name: name in known.LATER_DATASETS),
    ("training.dtype", "training without fp32 weights", _off_default("float32")),
    ("training.enable_cpu_offload", "CPU offload", bool),
    ("validation.enable", "validation", bool),
    ("memory_estimation.enable", "the memory estimate", bool),
    (
        "parallelism.data_parallel_replicate_degree",
        "replicas inside a group (replicas are groups: launch.groups)",
        _above_one,
    ),
    ("parallelism.tensor_parallel_degree", "tensor parallelism", _above_one),
    ("parallelism.pipeline_parallel_degree", "pipeline parallelism", _above_one),
    ("parallelism.context_parallel_degree", "context parallelism", _above_one),
    ("parallelism.expert_parallel_degree", "expert parallelism", _above_one),
    ("parallelism.expert_tensor_parallel_degree", "expert parallelism", _above_one),
    ("parallelism.enable_compiled_autograd", "torch.compile", bool),
    ("activation_checkpoint.mode", "activation checkpointing", _off_default("none")),
    ("compile.enable", "torch.compile", bool),
    ("comm.mode", "simulated communication", _off_default("default")),
    ("profiling.enable_profiling", "profiling", bool),
    ("profiling.enable_memory_snapshot", "memory snapshots", bool),
    ("metrics.enable_tensorboard", "TensorBoard", bool),
    ("metrics.enable_wandb", "Weights & Biases", bool),
    ("debug.deterministic_warn_only", "determinism that only warns", bool),
    ("experimental.custom_args_module", "config classes of the user's own", bool),
    ("launch.nodes_per_group", "groups over several nodes", _above_one),
    ("fault_tolerance.semi_sync_method", "semi-synchronous training (LocalSGD, DiLoCo)", bool),
    (
        "checkpoint.create_seed_checkpoint",
        "seed checkpoints (step 0 depends on debug.seed alone, never on the layout)",
        bool,
    ),
    ("checkpoint.load_only", "loading without saving (checkpoint.interval says what is saved)", bool),
    (
        "checkpoint.initial_load_in_hf_quantized",
        "quantized weights (checkpoint.initial_load_in_hf reads unquantized ones)",
        bool,
    ),
)
"""(key, feature, whether a value of that key would act)."""
