"""What does training pay for a save? One copy of its state into buffers that every save uses again.

After the copy the training thread goes on and a worker writes the buffers. Buffers are made at the first save and kept
(memory does not grow with the number of saves); they are pinned where asked, so a device copies at full speed. What is
staged is one ``Staged`` for as long as the state is laid out the same, so whoever writes it need not look at every
tensor again. A staged DTensor keeps the mesh and placements of its original and holds CPU memory.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from checkpointing.memory import bytes_of
from checkpointing.state import local


class Staged:
    """A state in CPU memory. Its tensors and their places stay; only bytes change."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)

    @functools.cached_property
    def layout(self) -> tuple[object, ...]:
        """All that decides what a save of it looks like, but for the bytes of the tensors."""
        return tuple(
            (name, tensor.dtype, tuple(local(tensor).shape), _spec(tensor)) for name, tensor in self.tensors.items()
        )

    @functools.cached_property
    def memory(self) -> dict[str, memoryview]:
        """This rank's bytes of each tensor, row-major."""
        return {name: bytes_of(local(t).reshape(-1).view(torch.uint8)) for name, t in self.tensors.items()}

    @property
    def dense(self) -> bool:
        """No tensor has gaps, or an order of its own, in memory; ``memory`` is the tensors' own then."""
        return all(local(tensor).is_contiguous() for tensor in self.tensors.values())


class Staging:
    """The buffers of one rank. Whoever reads the result must be done before the next ``copy``."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned and torch.cuda.is_available()
        self._staged = Staged({})
        self._buffers: list[torch.Tensor] = []
        """Of the staged tensors, in their order."""

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Staged:
        """This rank's shards of ``tensors``, copied to the CPU. Training thread; returns when the bytes are there."""
        with torch.no_grad():  # once, not for each tensor: training waits
            shards = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors.values()]
            if not self._fits(tensors, shards):
                self._make(tensors, shards)
            torch._foreach_copy_(self._buffers, shards, non_blocking=self._pinned)
        if any(shard.is_cuda for shard in shards):
            torch.cuda.current_stream().synchronize()
        return self._staged

    def _fits(self, tensors: Mapping[str, torch.Tensor], shards: list[torch.Tensor]) -> bool:
        """What is staged is laid out as ``tensors`` are."""
        staged = self._staged.tensors
        return list(staged) == list(tensors) and all(
            buffer.shape == shard.shape and buffer.dtype == shard.dtype and _spec(kept) == _spec(tensor)
            for buffer, shard, kept, tensor in zip(
                self._buffers, shards, staged.values(), tensors.values(), strict=True
            )
        )

    def _make(self, tensors: Mapping[str, torch.Tensor], shards: list[torch.Tensor]) -> None:
        self._staged, self._buffers = Staged({}), []  # never twice in memory
        self._buffers = [
            torch.empty(shard.shape, dtype=shard.dtype, device="cpu", pin_memory=self._pinned) for shard in shards
        ]
        pairs = zip(tensors.items(), self._buffers, strict=True)
        self._staged = Staged({name: _like(tensor, buffer) for (name, tensor), buffer in pairs})


def _spec(tensor: torch.Tensor) -> object:
    return tensor._spec if isinstance(tensor, DTensor) else None


def _like(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return shard
    # Not from_local: it would move the CPU shard to the mesh's device.
    return DTensor(shard, tensor._spec, requires_grad=False)
