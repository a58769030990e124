"""What do the baselines train? The model, the data and the batch of a config, with plain torch around them.

FSDP2 on the mesh that is given (with two axes: HSDP), AdamW at a constant rate, the mean gradient of the batch, nothing
clipped. Saves are DCP's own, blocking, whole or not there at all. Used by the ranks of stock torchft and native HSDP.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from checkpointing.state import Tensors
from configs.schema import Config
from configs.shapes import microbatches_per_group
from trainer.data.build import Data
from trainer.models.registry import get
from trainer.optimizer import build_optimizer

SAVE_EVERY = "BENCH_SAVE_EVERY"
"""Environment: steps between saves; 0 never saves."""
KEPT = 3
LIVES = 1_000_000
"""Restarts that torchrun is allowed."""


def sharded_model(config: Config, *, vocab_size: int, mesh: DeviceMesh) -> nn.Module:
    """The config's model, its blocks and its root under FSDP2."""
    spec = get(config.model.name)
    with torch.device("meta"):
        flavor = spec.flavor(config.model.flavor)
        model = spec.build(flavor, seq_len=config.training.seq_len, vocab_size=vocab_size)
    reshard = config.parallelism.fsdp_reshard_after_forward != "never"
    for block in spec.blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.to_empty(device="cpu")
    spec.init_weights(model, seed=config.debug.seed)
    return model.train()


def plain_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The config's optimizer at its highest rate."""
    optimizer = build_optimizer(
        model.parameters(),
        name=config.optimizer.name,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
        implementation=config.optimizer.implementation,
    )
    for options in optimizer.param_groups:
        options["lr"] = config.optimizer.lr
    return optimizer


def batch(config: Config, data: Data, *, step: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, labels) of one rank of the group at ``place`` among all groups: its share of the step, in one piece."""
    share = microbatches_per_group(config)
    first = (step * config.launch.groups + place) * share
    parts = [data.loader.get(first + i) for i in range(share)]
    return torch.cat([part.tokens for part in parts]), torch.cat([part.labels for part in parts])


def save_every() -> int:
    """Steps between saves, as the environment says."""
    return int(os.environ.get(SAVE_EVERY, "0"))


def restarts() -> int:
    """How often torchrun has started these ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def save(state: Tensors, folder: Path, *, step: int, owner: str) -> None:
    """Write a checkpoint under its name once it is whole, and keep the newest few. Collective; blocks."""
    unfinished = folder / f".{owner}"
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a predecessor that died in it
    state_dict_saver.save(dict(state), checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        path = folder / str(step)
        shutil.rmtree(path, ignore_errors=True)  # of a history that was rolled back
        unfinished.rename(path)
        for old in _steps(folder)[:-KEPT]:
            shutil.rmtree(folder / str(old), ignore_errors=True)


def restore(state: Tensors, folder: Path) -> int:
    """Load the newest checkpoint; its step, 0 when there is none. Collective."""
    newest: list[int] = [(_steps(folder) or [0])[-1]]
    dist.broadcast_object_list(newest)  # ranks may have looked at different moments
    if newest[0]:
        state_dict_loader.load(dict(state), checkpoint_id=folder / str(newest[0]))
    return newest[0]


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*")) if folder.is_dir() else []
