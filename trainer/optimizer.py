"""The optimizer of a run, and the one update of a committed step.

The learning rate is set from the committed step right before the update, so no scheduler can be late or early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from checkpointing.state import local


def build_optimizer(
    params: Iterable[nn.Parameter],
    *,
    name: str,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    implementation: str,
) -> torch.optim.Optimizer:
    """AdamW or Adam. The learning rate given here is never used: ``update`` sets it."""
    kinds: dict[str, type[torch.optim.AdamW] | type[torch.optim.Adam]] = {
        "AdamW": torch.optim.AdamW,
        "Adam": torch.optim.Adam,
    }
    return kinds[name](
        [p for p in params if p.requires_grad],
        lr=0.0,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        foreach=implementation == "foreach",
        fused=implementation == "fused",
    )


def gradient_norm(params: Iterable[nn.Parameter]) -> float:
    """L2 norm of the whole gradient, over the shards of all ranks of the group. Collective; one device sync.

    Squares are summed in a fixed order, so equal gradients give equal bits: rows of ``_ROW`` elements in float32, their
    sums in float64; everything in float64 where the squares would leave float32, which every rank sees in the same sum.
    """
    shards = [local(p.grad) for p in params if p.grad is not None]
    norm = _norm([_square(shard) for shard in shards])
    if _SAFE[0] < norm < _SAFE[1]:
        return norm
    return _norm([shard.double().square().sum() for shard in shards])


_ROW = 4096
_SAFE = (1e-15, 1e15)
"""Norms of which no part that matters was lost by squaring in float32."""


def _norm(squares: Sequence[torch.Tensor]) -> float:
    total = torch.stack([*squares]).sum().cpu() if squares else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.sqrt())


def _square(shard: torch.Tensor) -> torch.Tensor:
    """Its squares' sum, float64 []. One read of the memory, seven times as fast on a CPU as converting all of it."""
    flat = shard.reshape(-1)
    whole = flat.numel() // _ROW * _ROW
    rows: torch.Tensor = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32)
    rest: torch.Tensor = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    return rows.double().square().sum() + rest.double().square()


def clip(params: Iterable[nn.Parameter], *, norm: float, max_norm: float) -> None:
    """Scale every gradient so that the whole gradient's norm is at most ``max_norm`` (no clipping at 0)."""
    factor = max_norm / (norm + 1e-6)
    if max_norm <= 0 or factor >= 1.0:
        return
    for p in params:
        if p.grad is not None:
            local(p.grad).mul_(factor)


def update(optimizer: torch.optim.Optimizer, *, lr: float) -> None:
    """The optimizer step, at this learning rate; gradients are gone afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
