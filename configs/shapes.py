"""How many ranks, sequences and microbatches a config means. Pure; every part that counts asks here.

A microbatch is ``local_batch_size`` sequences for each data-parallel rank of a group; a step is always M of them.
"""

from __future__ import annotations

import math

from configs.schema import Config


def model_ranks(config: Config) -> int:
    """Ranks of a group that share one sequence: tensor x pipeline x context degrees."""
    p = config.parallelism
    return p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree


def ranks_per_group(config: Config) -> int:
    """Processes of one group: as set, or the product of the mesh degrees (a degree of -1 counts as 1)."""
    if config.launch.ranks_per_group is not None:
        return config.launch.ranks_per_group
    p = config.parallelism
    return max(1, p.data_parallel_shard_degree) * p.data_parallel_replicate_degree * model_ranks(config)


def shard_degree(config: Config) -> int:
    """Ranks over which FSDP2 shards, with -1 filled in."""
    p = config.parallelism
    if p.data_parallel_shard_degree != -1:
        return p.data_parallel_shard_degree
    return ranks_per_group(config) // (p.data_parallel_replicate_degree * model_ranks(config))


def data_parallel_ranks(config: Config) -> int:
    """Ranks of one group that read different sequences."""
    return shard_degree(config) * config.parallelism.data_parallel_replicate_degree


def world_size(config: Config) -> int:
    """Ranks of all groups together."""
    return config.launch.groups * ranks_per_group(config)


def microbatch_samples(config: Config) -> int:
    """B: sequences of one microbatch."""
    return config.training.local_batch_size * data_parallel_ranks(config)


def global_batch(config: Config) -> int:
    """Sequences of one step over all groups, from the config and never from who is alive."""
    if config.training.global_batch_size != -1:
        return config.training.global_batch_size
    return microbatch_samples(config) * config.launch.groups


def microbatches(config: Config) -> int:
    """M: microbatches of one step; whole in a valid config."""
    return global_batch(config) // microbatch_samples(config)


def microbatches_per_group(config: Config) -> int:
    """What each group computes with ``fault_tolerance.batch = "per_group"``; whole in a valid config."""
    return microbatches(config) // config.launch.groups


def tokens_per_step(config: Config) -> int:
    """Tokens of one full step."""
    return global_batch(config) * config.training.seq_len


def efficiency(config: Config, participants: int) -> float:
    """Share of K participants' time that a step of M microbatches fills: M / (K * ceil(M / K))."""
    m = microbatches(config)
    return m / (participants * math.ceil(m / participants))
