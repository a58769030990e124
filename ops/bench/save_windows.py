"""How does one run save in three ways by turns? ``phalanx bench checkpoint`` has every rank import this module.

``experimental.custom_import`` names it; it puts itself between the run and its checkpoint folder: windows of steps in
which nothing is saved, in which every step is saved as runs do, and in which every step is saved by torch's own
``dcp.save`` while training waits. The step alone decides, so all ranks and groups agree. Windows of one run are
compared because a machine's speed drifts, and differs from run to run.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing.state import Clocks
from ops.bench.windows import STOCK, way_of
from trainer.disk import RunDisk

_save = RunDisk.save


def save(
    disk: RunDisk, tensors: Mapping[str, torch.Tensor], clocks: Clocks, *, rank: int, size: int, **more: Any
) -> None:
    """In place of ``RunDisk.save``. Collective over the group in a window of ``dcp.save``."""
    way = way_of(clocks.step)
    if way == "with":
        _save(disk, tensors, clocks, rank=rank, size=size, **more)
    elif way == "blocking" and clocks.step % size == rank:
        _stock_save(disk, tensors, clocks.step)


def _stock_save(disk: RunDisk, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """In the same folder, under a name that no reader of checkpoints takes; only the newest one stays."""
    new = disk._folder / f"{STOCK}{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing process group: one rank is a group too
        dcp_save(dict(tensors), checkpoint_id=new, process_group=disk._group)
    if dist.get_rank(disk._group) == 0:
        for old in disk._folder.glob(f"{STOCK}*"):
            if old != new:
                shutil.rmtree(old, ignore_errors=True)


RunDisk.save = save  # type: ignore[method-assign, assignment]
