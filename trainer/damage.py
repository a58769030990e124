"""Injected corruption of the state itself: one bit of one parameter, as a failing memory would flip it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TOP_MANTISSA = {torch.float32: 22, torch.bfloat16: 6, torch.float16: 9, torch.float64: 51}


def flip_bit(shards: Iterable[torch.Tensor], *, where: str) -> None:
    """Flip the highest bit of the mantissa of one element that this rank holds: finite, and never unnoticed. ``where``
    chooses it, as in ``g1/7``: two memories that fail at once do not fail alike."""
    held = [shard.detach().view(-1) for shard in shards if shard.numel()]
    if not held:
        return
    chosen = xxhash.xxh64_intdigest(where.encode())
    words = held[chosen % len(held)]
    at = chosen // len(held) % words.numel()
    words[at : at + 1].view(_WORDS[words.element_size()]).bitwise_xor_(1 << _TOP_MANTISSA.get(words.dtype, 0))
