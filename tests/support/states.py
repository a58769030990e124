"""Small states to save, move and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from checkpointing.state import Clocks
from configs.words import Lineage, join_quorum_id

EPOCH = 17


def lineage(step: int, running: int = 3) -> Lineage:
    return Lineage(step, join_quorum_id(epoch=EPOCH, running=running))


def clocks(step: int, running: int = 3, *, config_digest: str = "c0ffee") -> Clocks:
    return Clocks(
        step=step,
        quorum_id=lineage(step, running).quorum_id,
        cursor=24 * step,
        tokens=1000 * step,
        seed=7,
        config_digest=config_digest,
    )


def tensors(seed: int, rows: int = 40) -> dict[str, torch.Tensor]:
    """A closed list of every kind of tensor: matrix, bfloat16, scalar, empty."""
    random = torch.Generator().manual_seed(seed)
    return {
        "model.weight": torch.randn(rows, 5, generator=random),
        "model.half": torch.randn(7, generator=random).bfloat16(),
        "model.nothing": torch.empty(0, 3),
        "optim.weight.exp_avg": torch.randn(rows, 5, generator=random),
        "optim.weight.step": torch.tensor(float(seed)),
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Equal names, in order, and equal bits."""
    return list(a) == list(b) and all(_bits(a[name]) == _bits(b[name]) for name in a)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Recorder:
    """An event sink that remembers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, name: str, **fields: Any) -> None:
        json.dumps(fields)  # an event must be JSON
        self.events.append({"event": name, **fields})

    def statuses(self) -> list[tuple[int, str]]:
        return [(event["step"], event["status"]) for event in self.events]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def flip(path: Path, at: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
