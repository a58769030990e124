"""A small FSDP2 model with optimizer state that differs everywhere, the same on any number of ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from checkpointing.state import closed_list, ensure_optimizer_state


def state(world: int, *, filled: bool = True) -> dict[str, torch.Tensor]:
    """The closed list of a model whose rows do not divide by two, sharded over ``world`` ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3, bias=False), nn.LayerNorm(1))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    ensure_optimizer_state(optimizer)
    tensors = closed_list([model], [optimizer])
    fill(tensors, 1 if filled else None)
    return tensors


def fill(tensors: dict[str, torch.Tensor], seed: int | None) -> None:
    """Draw every whole tensor from ``seed`` and its name; None empties them all."""
    for name, tensor in tensors.items():
        whole = torch.zeros(tensor.shape)
        if seed is not None:
            whole = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed + len(name)))
        with torch.no_grad():
            if isinstance(tensor, DTensor):
                tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
            else:
                tensor.copy_(whole)


def dedicated() -> dist.ProcessGroup:
    """A gloo group of all ranks that the training group's collectives do not touch."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group
