"""How do the ranks of a group write one checkpoint folder together? Stock DCP, then digests, then the manifest.

Every rank takes part and every rank learns the same outcome: each stage ends with an exchange in which a rank that
failed says so (a full disk on one rank is a failed save on all), so no rank waits for another that has given up. Only
tensors are saved: DCP unpickles anything else. Runs on the writer's worker thread over a process group of its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save

from checkpointing.checksum import checksum, total
from checkpointing.fellows import Fellows
from checkpointing.folder import Unfinished, sync_folder, write_durably
from checkpointing.manifest import MANIFEST, METADATA, File, Key, Manifest, encode, file_digest
from checkpointing.state import Clocks, describe

_Part = tuple[dict[str, File], dict[str, Key], int]
"""Of one rank: files, keys, and the checksum of what was staged."""


class SaveFailed(Exception):
    """The save failed on some rank; every rank raises it with the same text."""


class _Planner(DefaultSavePlanner):
    """Stock, with a failpoint inside DCP's own protocol, so that what it raises reaches every rank."""

    def __init__(self, failpoint: Callable[[], None]) -> None:
        super().__init__()
        self._failpoint = failpoint

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Before this rank writes its first byte."""
        self._failpoint()
        return super().finish_plan(new_plan)


def write_checkpoint(
    folder: Path,
    *,
    fellows: Fellows,
    tensors: Mapping[str, torch.Tensor],
    clocks: Clocks,
    writer: str,
    secret: bytes | None,
    failpoint: Callable[..., None],
) -> tuple[Unfinished | None, int, int]:
    """Write the staged ``tensors`` (CPU) under a dot-name: (the folder on rank 0 and None elsewhere, its bytes,
    the checksum of the tensors of all ranks).

    Collective. On return every file and the folder are on disk; it only has to be renamed. Raises SaveFailed on every
    rank when any of them could not do its part; nothing is left behind then.
    """
    unfinished: Unfinished | None = None
    try:
        if fellows.rank == 0:
            unfinished, failure = _make(folder, writer, clocks)
            place = fellows.first((str(unfinished.path) if unfinished else "", failure))
        else:
            place = fellows.first(("", ""))
        if place[1]:
            raise SaveFailed(place[1])
        part, failure = _write_part(Path(place[0]), fellows, tensors, clocks, secret, failpoint)
        parts = fellows.all((part, failure))
        if failures := [f"rank {rank}: {why}" for rank, (_, why) in enumerate(parts) if why]:
            raise SaveFailed("; ".join(failures))
        if unfinished is None:
            size, failure = fellows.first((0, ""))
        else:
            size, failure = fellows.first(_seal(unfinished, [p for p, _ in parts], clocks, writer, secret))
        if failure:
            raise SaveFailed(failure)
    except BaseException:
        if unfinished is not None:
            unfinished.remove()
        raise
    return unfinished, size, total(part[2] for part, _ in parts)


def _make(folder: Path, writer: str, clocks: Clocks) -> tuple[Unfinished | None, str]:
    try:
        return Unfinished(folder, writer=writer, lineage=clocks.lineage), ""
    except OSError as error:
        return None, f"cannot make a folder: {error}"


def _write_part(
    path: Path,
    fellows: Fellows,
    tensors: Mapping[str, torch.Tensor],
    clocks: Clocks,
    secret: bytes | None,
    failpoint: Callable[..., None],
) -> tuple[_Part, str]:
    """DCP's save, then the digests of the files that this rank wrote: ((files, keys, checksum), failure)."""
    try:
        _dcp_save(path, fellows, tensors, clocks, failpoint)
        own = [METADATA] if fellows.rank == 0 else []
        own += sorted(file.name for file in path.glob(f"__{fellows.rank}_*.distcp"))
        files = {name: File((path / name).stat().st_size, file_digest(path / name, secret=secret)) for name in own}
        shards = {name: describe(tensor) for name, tensor in tensors.items()}
        keys = {name: Key(shard.dtype, shard.shape) for name, shard in shards.items()}
        return (files, keys, total(int(checksum(tensor)) for tensor in tensors.values())), ""
    # DCP has told every rank of any rank's failure by now; its own exception is no Exception.
    except (Exception, CheckpointException) as error:  # noqa: BLE001
        return ({}, {}, 0), _why(error)


def _dcp_save(
    path: Path, fellows: Fellows, tensors: Mapping[str, torch.Tensor], clocks: Clocks, failpoint: Callable[..., None]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing process group: one rank is a group too
        save(
            dict(tensors),
            storage_writer=FileSystemWriter(path, sync_files=True, overwrite=False),
            planner=_Planner(lambda: failpoint("save_write", step=clocks.step)),
            process_group=fellows.group,
            no_dist=fellows.group is None,
        )


def _seal(
    unfinished: Unfinished, parts: list[_Part], clocks: Clocks, writer: str, secret: bytes | None
) -> tuple[int, str]:
    """Rank 0, last: the manifest, and everything durable: (bytes, failure)."""
    manifest = Manifest(
        clocks=clocks,
        keys={name: key for _, keys, _ in parts for name, key in keys.items()},
        files={name: file for files, _, _ in parts for name, file in sorted(files.items())},
        written=time.time(),
        writer=writer,
        checksum=total(part for _, _, part in parts),
    )
    try:
        write_durably(unfinished.path / MANIFEST, encode(manifest, secret=secret))
        sync_folder(unfinished.path)
    except OSError as error:
        return 0, f"cannot write {MANIFEST}: {error}"
    return manifest.bytes, ""


def _why(error: BaseException) -> str:
    """One line that says what failed, out of DCP's collected tracebacks too."""
    if isinstance(error, CheckpointException):
        failures = (f"rank {rank}: {why[0]!r}" for rank, why in error.failures.items())
        return "; ".join(failures)
    return f"{type(error).__name__}: {error}"
