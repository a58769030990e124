"""Injected corruption of the state itself: one bit of one parameter, as a failing memory would flip it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TOP_MANTISSA = {torch.float32: 22, torch.bfloat16: 6, torch.float16: 9, torch.float64: 51}


def flip_bit(shards: Iterable[torch.Tensor]) -> None:
    """Flip the highest bit of the mantissa of the first element that this rank holds: finite, and never unnoticed."""
    for shard in shards:
        if shard.numel():
            word = shard.detach().view(-1)[:1].view(_WORDS[shard.element_size()])
            word.bitwise_xor_(1 << _TOP_MANTISSA.get(shard.dtype, 0))
            return
