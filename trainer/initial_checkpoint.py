"""Where do the values of step 0 come from, when another run's checkpoint gives them (``checkpoint.initial_load_path``)?

The path is one checkpoint folder, or a run or folder of checkpoints whose newest valid one is taken. It is read only
when the run starts from nothing; a run that has a checkpoint, or living peers, goes on from those, and says that the
path was ignored. The clocks (step, learning rate schedule, position in the data) always start afresh. Called by
``trainer.build``; ``load`` is collective over the ranks of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from checkpointing.errors import CheckpointError, DamagedCheckpoint
from checkpointing.fellows import Fellows
from checkpointing.manifest import MANIFEST, METADATA
from checkpointing.resume import load, survey
from checkpointing.state import MODEL, OPTIMIZER
from checkpointing.stock import load_stock
from configs.schema import Config

_PARTS = {"model": MODEL, "optimizer": OPTIMIZER}


def checkpoint_start(
    config: Config, tensors: Mapping[str, torch.Tensor], *, group: dist.ProcessGroup | None, secret: bytes | None
) -> Callable[[], str] | None:
    """What fills the tensors at step 0, after the seed has, and names its folder; None when the seed alone does.

    Collective over ``group``. The newest one that verifies is taken; each that is passed over is named. It raises
    CheckpointError, the same on every rank: nothing there that can be used, another model, missing or extra keys (all
    listed), a folder that no digest vouches for without ``checkpoint.trust``.
    """
    asked = config.checkpoint
    if not asked.enable or asked.initial_load_path is None or asked.initial_load_in_hf:
        return None
    root, skip = Path(asked.initial_load_path).expanduser(), skipped(config)

    def take(path: Path) -> str:
        if (path / MANIFEST).exists():
            return f"of step {load(path, tensors, group=group, secret=secret, skip=skip).step}"
        if not asked.trust:
            raise CheckpointError(f"{path} has no {MANIFEST}: no digest vouches for it; checkpoint.trust loads it")
        load_stock(path, tensors, group=group, skip=skip)
        return "which no digest vouches for"

    def fill() -> str:
        # One rank's view for all: another group may note damage there in between.
        found, passed_over = Fellows(group).first(find(root, secret=secret))
        for path in found:
            try:
                told = take(path)
            except DamagedCheckpoint as error:  # told by its digests, before a tensor was touched
                passed_over.append(error.reason)
                continue
            for reason in passed_over:
                print(f"passed over: {reason}")
            parts = [name for name, prefix in _PARTS.items() if prefix not in skip]
            print(f"step 0 takes {' and '.join(parts)} from {path}, {told}; all else starts from the seed")
            return str(path)
        bad = "".join(f"\n  {reason}" for reason in passed_over)
        raise CheckpointError(f"checkpoint.initial_load_path = {str(root)!r} holds no checkpoint that can be used{bad}")

    return fill


def skipped(config: Config) -> tuple[str, ...]:
    """Prefixes of the tensors that keep what the seed gave them."""
    excluded = set(config.checkpoint.exclude_from_loading)
    if config.checkpoint.initial_load_model_only:
        excluded.add("optimizer")
    return tuple(prefix for name, prefix in _PARTS.items() if name in excluded)


def find(root: Path, *, secret: bytes | None) -> tuple[list[Path], list[str]]:
    """The checkpoints that ``root`` means, newest first, and why others are passed over. Raises CheckpointError if a
    folder cannot be read."""
    if (root / MANIFEST).exists() or (root / METADATA).exists():
        return [root], []
    folder = root / "checkpoints" if (root / "checkpoints").is_dir() else root
    there = survey(folder, secret=secret, verify_newest=0)
    return [each.path for each in there.found], [f"{each.name}: {each.reason}" for each in there.passed_over]
