"""What is in a checkpoint folder, and how does one get a plain file of weights out of it? For the command line.

Reads only verified files, works in one process without a process group, and changes nothing that exists.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from checkpointing.errors import BadCheckpoint, CheckpointError
from checkpointing.manifest import Manifest
from checkpointing.objects import ObjectPlace
from checkpointing.resume import Survey, survey, verify
from checkpointing.retention import newest_first, retain
from checkpointing.state import MODEL
from configs.words import Lineage


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
    kept: str | None = None
    """Why the next save lets it stay, or that it does not. None where nothing says how many are kept."""


@dataclasses.dataclass(frozen=True)
class Keeping:
    """What a run's config says of how many checkpoints stay (``retention.retain``)."""

    latest_k: int
    every: int | None


def list_checkpoints(
    folder: Path, *, secret: bytes | None = None, verify_newest: int = 0, keeping: Keeping | None = None
) -> list[Row]:
    """Valid ones newest first, then those that a start would pass over. ``verify_newest`` of them by every digest, the
    others by manifest and sizes. A missing folder has none. Raises CheckpointError if it cannot be read."""
    seen = survey(folder, secret=secret, verify_newest=verify_newest)
    return rows_of(seen, keeping, lambda name: _size(folder / name))


def list_objects(url: str, *, secret: bytes | None = None, keeping: Keeping | None = None) -> list[Row]:
    """The same of an object store, by manifests and sizes; prefixes without a manifest come last."""
    with tempfile.TemporaryDirectory(prefix="phalanx-") as spool:
        place = ObjectPlace(url, spool=Path(spool), secret=secret)
        return rows_of(place.survey(), keeping, lambda name: _stored(place, name))


def rows_of(seen: Survey, keeping: Keeping | None, size: Callable[[str], int | None]) -> list[Row]:
    """A survey as a listing; ``size`` is asked for the bytes of what no manifest vouches for."""
    kept = _kept([found.lineage for found in seen.found], keeping)
    rows = [_row(found.path.name, found.manifest, kept.get(found.lineage)) for found in seen.found]
    bad = (*seen.passed_over, *seen.unfinished)
    return rows + [_bad_row(each.name, each.reason, size(each.name)) for each in bad]


def to_torch(step_folder: Path, out: Path, *, secret: bytes | None = None) -> int:
    """Write ``{"model": {name: whole tensor}}`` to ``out``, for ``torch.load(out, weights_only=True)``: its bytes.

    Raises CheckpointError if the checkpoint does not verify or cannot be read, FileExistsError if ``out`` exists, and
    OSError if it cannot be written.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; it is not written over")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} cannot be written: no folder {out.parent}")
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
    except RuntimeError as error:  # torch's file writer has no other
        raise OSError(f"{out} cannot be written: {str(error).splitlines()[0]}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return out.stat().st_size


def _row(name: str, manifest: Manifest, kept: str | None) -> Row:
    lineage = manifest.lineage
    written, size, writer = manifest.written, manifest.bytes, manifest.writer
    return Row(name, True, "", lineage.step, str(lineage), written, size, writer, kept)


def _bad_row(name: str, reason: str, size: int | None) -> Row:
    """The name says of which state it would be."""
    lineage = Lineage.parse_folder(name)
    assert lineage is not None
    return Row(name, False, reason, lineage.step, str(lineage), bytes=size)


def _stored(place: ObjectPlace, name: str) -> int:
    lineage = Lineage.parse_folder(name)
    assert lineage is not None
    return sum(place.objects(lineage).values())


def _kept(lineages: list[Lineage], keeping: Keeping | None) -> dict[Lineage, str]:
    """What a save that is due now would say of each."""
    if keeping is None or not lineages:
        return {}
    newest = newest_first(lineages)[0]
    decided = retain(lineages, durable=newest, keep_latest_k=keeping.latest_k, keep_every=keeping.every)
    gone = {lineage: f"the next save removes it: {reason}" for lineage, reason in decided.delete.items()}
    return {**decided.keep, **gone, **decided.set_aside}


def _size(path: Path) -> int | None:
    """Bytes in a folder that no manifest vouches for; None when it cannot be read."""
    try:
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    except OSError:
        return None
