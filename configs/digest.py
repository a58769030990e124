"""What makes two configs the same training, as one hash.

A checkpoint may be resumed by a config of the same digest: model, optimizer, data, batch, precision, seed. Not in it:
``training.steps`` and everything that says how long, where, how observed or how fast a run goes. Groups of one run
must agree on more, for their collectives meet: that is ``common_digest``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from configs import shapes
from configs.fields import Alias, Later, NoEquivalent
from configs.keys import leaves, mark, value_of
from configs.schema import Config

TRAINING_SECTIONS = ("model", "optimizer", "lr_scheduler", "training", "quantize")
TRAINING_KEYS = (
    "debug.seed",
    "fault_tolerance.batch",
    "fault_tolerance.reduction",
    "fault_tolerance.fixed_point_bits",
)
EXCLUDED = (
    "training.steps",
    "training.workers",
    "training.global_batch_size",  # counts resolved, below
    "training.nonfinite",
    "training.nonfinite_limit",
    "training.enable_cpu_offload",
)

COMMON_SECTIONS = ("parallelism", "activation_checkpoint", "compile", "debug")
COMMON_KEYS = (
    "checkpoint.enable",  # the divergence check goes by what is saved
    "checkpoint.enable_first_step_checkpoint",
    "checkpoint.initial_load_in_hf",
    "checkpoint.initial_load_path",
    "checkpoint.interval",
    "fault_tolerance.bucket_bytes",
    "fault_tolerance.process_group",
    "fault_tolerance.divergence_check",
    "launch.threads_per_rank",
    "training.nonfinite",
    "training.nonfinite_limit",
    "training.steps",
)


def digest(config: Config) -> str:
    """sha256, hex, of what changes the training."""
    return _hash(_training(config))


def state_digest_of(config: Config, *, data: str) -> str:
    """sha256, hex, of what a state belongs to: the training, and the very tokens (``data``, the store's digest), for a
    path can hold other texts tomorrow."""
    return _hash({"training": digest(config), "data": data})


def common_digest(config: Config) -> str:
    """sha256, hex, of what all groups of a run must have in common."""
    return _hash(_common(config))


def differing(mine: Config, other: Config) -> list[str]:
    """The keys that make two configs' digests differ, for the message of a refusal."""
    return _different(_training(mine), _training(other))


def common_differing(mine: Config, other: Config) -> list[str]:
    """The keys in which two groups of one run may not differ, and do."""
    return _different(_common(mine), _common(other))


def _different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return sorted(key for key in {*a, *b} if a.get(key) != b.get(key))


def _common(config: Config) -> dict[str, Any]:
    found = _training(config)
    found |= {key: value_of(config, key) for key in leaves() if key.partition(".")[0] in COMMON_SECTIONS}
    found |= {key: value_of(config, key) for key in COMMON_KEYS}
    resolved = {
        "launch.ranks_per_group": shapes.ranks_per_group(config),
        "parallelism.data_parallel_shard_degree": shapes.shard_degree(config),
    }
    return found | resolved


def _training(config: Config) -> dict[str, Any]:
    keys = [key for key in leaves() if key.partition(".")[0] in TRAINING_SECTIONS and _tells(key)]
    found = {key: value_of(config, key) for key in (*keys, *TRAINING_KEYS)}
    # Resolved: a default batch depends on launch.groups, and so does the training then.
    found["training.global_batch_size"] = shapes.global_batch(config)
    return found


def _tells(key: str) -> bool:
    """Whether a key of a training section has a say: keys of what does not exist yet have none."""
    return key not in EXCLUDED and not any(mark(key, kind) for kind in (Alias, Later, NoEquivalent))


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
