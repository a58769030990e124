"""How is a DCP folder read that no manifest of ours vouches for? Only when the user trusts it: it holds pickles.

Its keys are taken as they are. Called for ``checkpoint.initial_load_path`` with ``checkpoint.trust``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from checkpointing.errors import CheckpointError
from checkpointing.fellows import Fellows


def load_stock(
    path: Path, tensors: Mapping[str, torch.Tensor], *, group: dist.ProcessGroup | None, skip: Sequence[str] = ()
) -> None:
    """Read ``path`` into ``tensors``, in place, except names that start with one of ``skip``. Unpickles ``.metadata``.

    Collective over ``group`` (gloo). Raises CheckpointError, the same on every rank, listing missing and extra keys.
    """
    fellows = Fellows(group)
    mine = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(skip))}
    if failures := [why for why in fellows.all(_misfit(path, mine, skip)) if why]:
        raise CheckpointError(f"{path} cannot be loaded: {failures[0]}")
    failure = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a missing process group: one rank is a group too
            dcp_load(dict(mine), storage_reader=FileSystemReader(path), process_group=group, no_dist=group is None)
    # DCP's own exception is no Exception; it has told every rank of any rank's failure.
    except (OSError, RuntimeError, ValueError, AssertionError, CheckpointException) as error:
        failure = f"{type(error).__name__}: {error}"
    if failures := [why for why in fellows.all(failure) if why]:
        raise CheckpointError(f"{path} cannot be loaded: {failures[0]}")


def _misfit(path: Path, mine: Mapping[str, torch.Tensor], skip: Sequence[str]) -> str:
    try:
        found = FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # noqa: BLE001 - unpickling a stranger's file can raise anything; the fellows wait
        return f".metadata cannot be read: {error}"
    held = {name: entry for name, entry in found.items() if not name.startswith(tuple(skip))}
    problems = []
    if missing := sorted(mine.keys() - held.keys()):
        problems.append("missing in the checkpoint: " + ", ".join(missing))
    if extra := sorted(held.keys() - mine.keys()):
        problems.append("only in the checkpoint: " + ", ".join(extra))
    for name in sorted(mine.keys() & held.keys()):
        entry = held[name]
        if not isinstance(entry, TensorStorageMetadata) or entry.size != mine[name].shape:
            there = list(entry.size) if isinstance(entry, TensorStorageMetadata) else "no tensor"
            problems.append(f"{name} is {there}, the model has {list(mine[name].shape)}")
    return "; ".join(problems)
