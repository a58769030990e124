"""Are two states the same, whatever their sharding? One sha256 over the whole state, equal for equal states.

Over the sorted names of parameters, optimizer state and the clocks ``step`` and ``cursor``: the name, the number of
bytes and the bytes of the whole tensor, row-major. Lineage is left out, so runs with different quorums can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
import torch.distributed as dist

from checkpointing.fellows import Fellows
from checkpointing.gather import flat, whole_tensors
from checkpointing.memory import bytes_of
from checkpointing.state import Clocks


def state_digest(tensors: Mapping[str, torch.Tensor], clocks: Clocks, *, group: dist.ProcessGroup | None) -> str:
    """sha256 of the whole state, the same hex text on every rank. Collective over ``group`` (gloo).

    ``tensors`` are this rank's part of the closed list, at a commit boundary; ranks may hold different names (pipeline
    stages). Ranks that disagree about a tensor's shape or dtype raise ValueError.
    """
    fellows = Fellows(group)
    hasher = hashlib.sha256()
    numbers = {"clocks.cursor": clocks.cursor, "clocks.step": clocks.step}
    for name, value in numbers.items():  # sorts before "model." and "optim."
        _update(hasher, name, value.to_bytes(8, "little", signed=True))
    for name, whole in whole_tensors(tensors, fellows):
        _update(hasher, name, bytes_of(flat(whole)))
    return fellows.first(hasher.hexdigest())


def _update(hasher: hashlib._Hash, name: str, data: bytes | memoryview) -> None:
    hasher.update(name.encode() + b"\0" + len(data).to_bytes(8, "little"))
    hasher.update(data)
