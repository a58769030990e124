"""The optimizer of a run, and the one update of a committed step.

The learning rate is set from the committed step right before the update, so no scheduler can be late or early.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


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

    Squares are summed in float64, tensor by tensor in a fixed order, so equal gradients give equal bits.
    """
    grads = [p.grad for p in params if p.grad is not None]
    squares = [(g.to_local() if isinstance(g, DTensor) else g).double().square().sum() for g in grads]
    total = torch.stack(squares).sum().cpu() if squares else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.sqrt())


def clip(params: Iterable[nn.Parameter], *, norm: float, max_norm: float) -> None:
    """Scale every gradient so that the whole gradient's norm is at most ``max_norm`` (no clipping at 0)."""
    factor = max_norm / (norm + 1e-6)
    if max_norm <= 0 or factor >= 1.0:
        return
    for p in params:
        if p.grad is not None:
            grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
            grad.mul_(factor)


def update(optimizer: torch.optim.Optimizer, *, lr: float) -> None:
    """The optimizer step, at this learning rate; gradients are gone afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
