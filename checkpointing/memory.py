"""Where are a shard's bytes? Gives sockets and files the memory of a rank's local shard, without a copy where it can.

CPU memory that is contiguous is handed out as it is: what is received into it is in the tensor. A device tensor goes
through one reused (pinned) buffer of chunk size, a CPU tensor with gaps through a contiguous twin. Made on the training
thread; the views may be used on another one as long as nobody writes the tensor.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from checkpointing.state import local


def bytes_of(data: torch.Tensor) -> memoryview:
    """The memory of a contiguous uint8 CPU tensor."""
    return memoryview(cast("Any", data.numpy()))


class Buffer:
    """A reused CPU buffer for chunks of device tensors. One per thread that moves chunks."""

    def __init__(self) -> None:
        self._bytes: torch.Tensor | None = None

    def take(self, size: int) -> torch.Tensor:
        """``size`` bytes of CPU memory (uint8), valid until the next take; pinned where there is a device."""
        if self._bytes is None or self._bytes.numel() < size:
            self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=torch.accelerator.is_available())
        return self._bytes[:size]


class ShardBytes:
    """The bytes of one local shard, row-major, addressed from 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shard = local(tensor)
        self._packed = self._shard.contiguous()  # a twin only where the shard has gaps
        self._flat = self._packed.reshape(-1).view(torch.uint8)
        self._direct = bytes_of(self._flat) if self._flat.device.type == "cpu" else None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._flat.numel()

    def readable(self, start: int, stop: int, buffer: Buffer) -> memoryview:
        """Bytes [start, stop) to read from."""
        if self._direct is not None:
            return self._direct[start:stop]
        staged = buffer.take(stop - start)
        staged.copy_(self._flat[start:stop])
        return bytes_of(staged)

    def landing(self, start: int, stop: int, buffer: Buffer) -> memoryview:
        """Memory to receive bytes [start, stop) into; ``landed`` must follow with the same arguments."""
        if self._direct is not None:
            return self._direct[start:stop]
        return bytes_of(buffer.take(stop - start))

    def landed(self, start: int, stop: int, buffer: Buffer) -> None:
        """Bytes [start, stop) are in the landing memory: move them on where that is not the tensor's own."""
        if self._direct is None:
            self._flat[start:stop].copy_(buffer.take(stop - start))

    def finish(self) -> None:
        """All bytes have landed: fill a shard with gaps from its twin."""
        if self._packed.data_ptr() != self._shard.data_ptr():
            self._shard.copy_(self._packed)
