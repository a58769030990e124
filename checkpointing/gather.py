"""How does rank 0 see whole tensors of a sharded state, one after the other?

Shards travel to rank 0 over the group's CPU process group, in batches, so memory stays small: one batch, or one tensor
that is larger. Digests and exports read a state through this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from checkpointing.fellows import Fellows
from checkpointing.state import Shard, describe, local

BATCH_BYTES = 32 << 20
"""Whole tensors sent per exchange; a larger tensor goes alone."""

_Layout = dict[str, dict[int, Shard]]
"""name -> {rank: the part it sends}; parts that several ranks hold are sent by the lowest."""


def whole_tensors(tensors: Mapping[str, torch.Tensor], fellows: Fellows) -> Iterator[tuple[str, torch.Tensor]]:
    """On rank 0 (name, whole tensor on the CPU) of all that any rank holds, sorted by name; on the others nothing.

    Collective: every rank must run it to its end. Training thread, at a commit boundary. ``tensors`` are this rank's
    part; ranks may hold different names (pipeline stages). Ranks that disagree about a tensor's shape or dtype raise
    ValueError.
    """
    layout = _layout(fellows.all({name: describe(tensor) for name, tensor in tensors.items()}))
    for batch in _batches(layout):
        yield from _gather(batch, layout, tensors, fellows)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's bytes as uint8, row-major, on the CPU."""
    return local(tensor).cpu().contiguous().reshape(-1).view(torch.uint8)


def _layout(held: list[dict[str, Shard]]) -> _Layout:
    layout: _Layout = {}
    for name in sorted({name for names in held for name in names}):
        parts: dict[int, Shard] = {}
        for rank, names in enumerate(held):
            shard = names.get(name)
            if shard is None:
                continue
            first = next(iter(parts.values()), shard)
            if (shard.shape, shard.dtype) != (first.shape, first.dtype):
                raise ValueError(f"{name}: ranks hold {first.dtype}{first.shape} and {shard.dtype}{shard.shape}")
            if not parts or not (shard.empty or shard in parts.values()):
                parts[rank] = shard
        layout[name] = parts
    return layout


def _batches(layout: _Layout) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name, parts in layout.items():
        nbytes = _nbytes(next(iter(parts.values())), whole=True)
        if batch and size + nbytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += nbytes
    if batch:
        yield batch


def _gather(
    batch: list[str], layout: _Layout, tensors: Mapping[str, torch.Tensor], fellows: Fellows
) -> Iterator[tuple[str, torch.Tensor]]:
    """``whole_tensors`` of one batch."""
    sent: dict[int, torch.Tensor] = {}
    for rank in range(fellows.size):
        names = [name for name in batch if rank in layout[name]]
        total = sum(_nbytes(layout[name][rank]) for name in names)
        if not total:
            continue
        if fellows.rank == rank:
            sent[rank] = torch.cat([flat(tensors[name]) for name in names])
            if rank:
                fellows.send(sent[rank], to=0)
        elif fellows.rank == 0:
            sent[rank] = torch.empty(total, dtype=torch.uint8)
            fellows.receive(sent[rank], source=rank)
    if fellows.rank:
        return
    taken = dict.fromkeys(sent, 0)
    for name in batch:
        first = next(iter(layout[name].values()))
        whole = torch.empty(first.shape, dtype=getattr(torch, first.dtype))
        for rank, shard in layout[name].items():
            start, nbytes = taken.get(rank, 0), _nbytes(shard)
            if nbytes:
                part = sent[rank][start : start + nbytes].clone().view(whole.dtype).reshape(shard.size)
                whole[tuple(slice(o, o + s) for o, s in zip(shard.offset, shard.size, strict=True))] = part
                taken[rank] = start + nbytes
        yield name, whole


def _nbytes(shard: Shard, *, whole: bool = False) -> int:
    count: int = getattr(torch, shard.dtype).itemsize
    for extent in shard.shape if whole else shard.size:
        count *= extent
    return count
