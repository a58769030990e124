"""What is in a checkpoint folder, and how does one get a plain file of weights out of it? For the command line.

Reads only verified files, works in one process without a process group, and changes nothing that exists.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from checkpointing.errors import BadCheckpoint, CheckpointError
from checkpointing.manifest import Manifest
from checkpointing.resume import survey, verify
from checkpointing.state import MODEL


@dataclasses.dataclass(frozen=True)
class Row:
    """One checkpoint of a listing."""

    name: str
    valid: bool
    reason: str
    """Why it is passed over; empty for a valid one."""
    step: int | None = None
    lineage: str | None = None
    time: float | None = None
    """Unix seconds of the end of writing."""
    bytes: int | None = None
    writer: str | None = None
    """``group.incarnation``."""


def list_checkpoints(folder: Path, *, secret: bytes | None = None, verify_newest: int = 0) -> list[Row]:
    """Valid ones newest first, then those that a start would pass over. ``verify_newest`` of them by every digest, the
    others by manifest and sizes. A missing folder has none. Raises CheckpointError if it cannot be read."""
    seen = survey(folder, secret=secret, verify_newest=verify_newest)
    rows = [_row(found.path.name, found.manifest) for found in seen.found]
    return rows + [Row(each.name, False, each.reason) for each in seen.passed_over]


def to_torch(step_folder: Path, out: Path, *, secret: bytes | None = None) -> int:
    """Write ``{"model": {name: whole tensor}}`` to ``out``, for ``torch.load(out, weights_only=True)``: its bytes.

    Raises CheckpointError if the checkpoint does not verify or cannot be read, FileExistsError if ``out`` exists.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; it is not written over")
    try:
        manifest = verify(step_folder, secret=secret)
    except BadCheckpoint as error:
        raise CheckpointError(f"{step_folder}: {error}") from None
    whole = {
        name: torch.empty(key.shape, dtype=getattr(torch, key.dtype))
        for name, key in manifest.keys.items()
        if name.startswith(MODEL)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one process is meant
            dcp_load(dict(whole), storage_reader=FileSystemReader(step_folder), no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{step_folder}: {error}") from None
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        torch.save({"model": {name.removeprefix(MODEL): tensor for name, tensor in whole.items()}}, unfinished)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return out.stat().st_size


def _row(name: str, manifest: Manifest) -> Row:
    lineage = manifest.lineage
    return Row(name, True, "", lineage.step, str(lineage), manifest.written, manifest.bytes, manifest.writer)
