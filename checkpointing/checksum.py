"""Are two copies of a shard the same bits? A sum over bit patterns that costs no more than reading the memory once.

Words of the element's size, read as integers, are added into int64, wrapping. One flipped bit always changes the sum;
it is no defence against an adversary, which is what the digests of files and chunks are for. Used on the live state by
the trainer's sentinel and on staged copies by the writer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from checkpointing.state import local

_WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BITS = 64


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Of this rank's memory of ``tensor``: int64 [], on the tensor's device, without a sync. Training thread for
    DTensors, while nobody writes them."""
    shard = local(tensor)
    if shard.is_complex():
        shard = torch.view_as_real(shard)
    words = shard.contiguous().reshape(-1).view(_WORD[shard.element_size()])
    if words.device.type != "cpu":
        return words.sum(dtype=torch.int64)
    # numpy adds int32 into int64 about 5 times as fast as torch on one thread
    return torch.tensor(int(np.add.reduce(words.numpy(), dtype=np.int64)), dtype=torch.int64)


def total(sums: Iterable[int]) -> int:
    """The sum of checksums, wrapped to int64 as a collective wraps it."""
    whole = sum(sums) & ((1 << _BITS) - 1)
    return whole - (1 << _BITS) if whole >> (_BITS - 1) else whole
