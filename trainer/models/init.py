"""What value does each parameter start from?

A function of (seed, parameter name, position in the whole tensor), so that every sharding, pipeline split and group
starts from the same bits without a word between ranks. A tensor is cut along its first dim into blocks whose size
depends on its shape alone; each block has a random stream of its own, and a rank draws only the blocks that its shard
touches. Drawn on the CPU by numpy's Philox, keyed with 128 bits of a hash: torch's CPU generator keeps 32 bits of a
seed, too few to tell the blocks of a large model apart. Called by the models' ``init_weights``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from checkpointing.state import plain_name

BLOCK_NUMBERS = 1 << 20
"""Numbers drawn from one stream at most (a wider row is one block). Changing it changes every initial state."""


@dataclasses.dataclass(frozen=True)
class Normal:
    """Drawn from a normal distribution of mean 0."""

    std: float


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same number everywhere."""

    value: float


Rule = Callable[[str], Normal | Constant]
"""From a parameter's name, as the bare model names it, to how it starts."""


@torch.no_grad()
def init_parameters(model: nn.Module, *, seed: int, rule: Rule) -> None:
    """Fill every parameter of ``model`` in place, whatever its device, dtype and sharding. No collectives.

    Raises ValueError when a parameter is still on the meta device.
    """
    for wrapped_name, parameter in model.named_parameters():
        name = plain_name(wrapped_name)
        if parameter.is_meta:
            raise ValueError(f"{name} has no memory yet: call to_empty first")
        start = rule(name)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if isinstance(start, Constant):
            local.fill_(start.value)
        elif local.numel():
            _fill_normal(local, shape=parameter.shape, owned=_owned(parameter), std=start.std, key=f"{seed}/{name}")


def _owned(parameter: Tensor) -> list[Tensor]:
    """For each tensor dim the positions of the whole tensor that this rank holds, ascending: int64 vectors."""
    owned = [torch.arange(size) for size in parameter.shape]
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        coordinate = mesh.get_coordinate()
        assert coordinate is not None, "this rank is outside the parameter's mesh"
        for axis, placement in enumerate(parameter.placements):
            if placement.is_replicate():
                continue
            dim: int = placement.dim  # type: ignore[attr-defined]  # sharded, plainly or strided (FSDP over TP)
            # The placement's own arithmetic, on positions instead of values: uneven and strided shards come out right.
            positions = owned[dim].view([-1 if d == dim else 1 for d in range(parameter.ndim)])
            shards, _ = placement._split_tensor(positions, mesh.size(axis), with_padding=False)  # type: ignore[attr-defined]
            owned[dim] = shards[coordinate[axis]].flatten()
    return owned


def _fill_normal(local: Tensor, *, shape: torch.Size, owned: list[Tensor], std: float, key: str) -> None:
    rows, width = owned[0], math.prod(shape[1:])
    block_rows = max(1, BLOCK_NUMBERS // width)
    for block in torch.unique_consecutive(rows // block_rows).tolist():
        first, last = block * block_rows, min((block + 1) * block_rows, shape[0])
        values = _draw(f"{key}/{block}", (last - first) * width).mul_(std).view(last - first, *shape[1:])
        begin, end = torch.searchsorted(rows, torch.tensor([first, last])).tolist()
        for dim, positions in enumerate([rows[begin:end] - first, *owned[1:]]):
            if len(positions) < values.shape[dim]:
                values = values.index_select(dim, positions)
        local[begin:end].copy_(values)


def _draw(key: str, count: int) -> Tensor:
    """``count`` standard normal fp32 numbers of the stream that ``key`` names."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    return torch.from_numpy(stream.standard_normal(count, dtype=np.float32))
