"""What does training pay for a save? One copy of its state into buffers that every save uses again.

After the copy the training thread goes on and a worker writes the buffers. Buffers are made at the first save and kept
(memory does not grow with the number of saves); they are pinned where asked, so a device copies at full speed. A staged
DTensor keeps the mesh and placements of its original and holds CPU memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from checkpointing.state import Tensors, local


class Staging:
    """The buffers of one rank. Whoever reads the result must be done before the next ``copy``."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned and torch.cuda.is_available()
        self._buffers: Tensors = {}

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        """This rank's shards of ``tensors``, copied to the CPU. Training thread; returns when the bytes are there."""
        shards = {name: local(tensor) for name, tensor in tensors.items()}
        self._buffers = {name: self._buffer(name, shard) for name, shard in shards.items()}
        with torch.no_grad():
            torch._foreach_copy_(list(self._buffers.values()), list(shards.values()), non_blocking=self._pinned)
        if any(shard.is_cuda for shard in shards.values()):
            torch.cuda.current_stream().synchronize()
        return {name: _like(tensor, self._buffers[name]) for name, tensor in tensors.items()}

    def _buffer(self, name: str, shard: torch.Tensor) -> torch.Tensor:
        kept = self._buffers.get(name)
        if kept is not None and kept.shape == shard.shape and kept.dtype == shard.dtype:
            return kept
        return torch.empty(shard.shape, dtype=shard.dtype, device="cpu", pin_memory=self._pinned)


def _like(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return shard
    # Not from_local: it would move the CPU shard to the mesh's device.
    return DTensor(shard, tensor._spec, requires_grad=False)
