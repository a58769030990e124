"""What does a rank know of the bits it computes, and does its group belong to the run? Brought to the lighthouse in two
parts: versions and machine with the terms of the join, token store and golden digest once everything is built.

The golden digest is that of the gradient of one fixed microbatch, the rehearsal's, at the seed's weights: a function of
config and mesh, never of incarnation or history. Groups whose digests are equal have the same kernels, instruction set,
threads and initial weights; it costs the hashing of one gradient. Called by trainer.connection and trainer.build.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from configs.protocol import Refused, Unreachable, Voucher
from configs.schema import Config
from configs.words import Exit, ExitRequest
from lighthouse.client import Control
from replica_groups.reduce import GradientReducer
from trainer.compute import Compute
from trainer.data.build import Data

if TYPE_CHECKING:
    from trainer.connection import Connection

_RETRY_S = 0.1


def software() -> dict[str, str]:
    """Versions of what computes, by name."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,  # with the build: +cpu and +cu130 are different kernels
        "torchft": importlib.metadata.version("torchft"),
        "numpy": importlib.metadata.version("numpy"),
    }


def machine(device: torch.device) -> dict[str, str]:
    """What else decides the bits of a gradient on ``device``."""
    if device.type == "cuda":
        return {"GPU": torch.cuda.get_device_name(device)}
    threads = str(torch.get_num_threads())
    return {"CPU capability": torch.backends.cpu.get_cpu_capability(), "threads of a rank": threads}


def compares_bits(config: Config, device: torch.device) -> bool:
    """Whether groups must have computed equal bits; a GPU need not give the same ones twice unless it is asked to."""
    exact = config.fault_tolerance.reduction == "exact"
    return exact and (device.type == "cpu" or config.debug.deterministic)


def rehearse(
    config: Config,
    connection: Connection,
    data: Data,
    compute: Compute,
    reducer: GradientReducer,
    *,
    device: torch.device,
) -> None:
    """One forward and backward at the seed's weights, and what it shows of this group. Collective over the group."""
    with golden_digest(reducer, wanted=compares_bits(config, device)) as golden:
        compute.rehearse(
            rows=config.training.local_batch_size, seq_len=config.training.seq_len, vocabulary=data.store.vocab_size
        )
    vouch(
        connection.control,
        connection.group,
        connection.incarnation,
        store=data.store.digest,
        golden=golden(),
        limit_s=connection.timeouts.first_step_limit_s,
    )


@contextmanager
def golden_digest(reducer: GradientReducer, *, wanted: bool) -> Iterator[Callable[[], str]]:
    """Digest of this rank's gradient shards of the backward in the ``with`` block; call what is yielded for it.

    Empty where it is not ``wanted``: then nothing is hashed.
    """
    digests: dict[nn.Parameter, bytes] = {}

    def watch(param: nn.Parameter, shard: torch.Tensor) -> None:
        data = shard.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
        digests[param] = xxhash.xxh3_128_digest(data)

    reducer.watch = watch if wanted else None
    try:
        yield lambda: xxhash.xxh3_128_hexdigest(b"".join(digests[p] for p in reducer.params)) if wanted else ""
    finally:
        reducer.watch = None


def vouch(control: Control | None, group: str, incarnation: int, *, store: str, golden: str, limit_s: float) -> None:
    """Show the lighthouse what this group has built. Collective over the group; rank 0 (with ``control``) speaks.

    Raises ExitRequest: 2 with everything that differs, 3 when no lighthouse answers within ``limit_s``.
    """
    brought: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(brought, (store, golden))
    odd = [rank for rank, (other, _) in enumerate(brought) if other != store]
    if odd:
        text = f"ranks of {group} read different token stores: rank {dist.get_rank()} has {store}, not so {odd}"
        raise ExitRequest(Exit.BAD_CONFIG, text)
    if control is None:
        return None
    whole = xxhash.xxh3_128_hexdigest(" ".join(digest for _, digest in brought).encode()) if golden else ""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return control.vouch(group, incarnation, Voucher(store=store, golden=whole))
        except Refused as refusal:
            raise ExitRequest(Exit.BAD_CONFIG, f"the lighthouse refuses {group}: {refusal}") from refusal
        except Unreachable as error:
            if time.monotonic() > deadline:
                raise ExitRequest(Exit.QUORUM_LOST, f"no lighthouse: {error}") from error
            time.sleep(_RETRY_S)
