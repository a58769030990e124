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
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save

from checkpointing.checksum import checksum, total
from checkpointing.fellows import Fellows
from checkpointing.folder import Unfinished, sync_folder, write_durably
from checkpointing.manifest import MANIFEST, METADATA, File, Key, Manifest, encode, file_digest
from checkpointing.repeat import Repeat, StockWriter
from checkpointing.staging import Staged
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


class FolderWriter:
    """Writes the checkpoints of one rank. Collective methods, on one thread.

    A save repeats what the one before it wrote, around the bytes of new tensors, if it can (``repeat``).
    """

    def __init__(
        self, folder: Path, *, fellows: Fellows, writer: str, secret: bytes | None, failpoint: Callable[..., None]
    ) -> None:
        self._folder = folder
        self._fellows = fellows
        self._writer = writer
        self._secret = secret
        self._failpoint = failpoint
        self._repeat: Repeat | None = None
        """None: the next save is stock DCP's."""
        self._keys: dict[str, Key] = {}
        """Rank 0: of all ranks. Belongs to ``_repeat``."""

    def write(self, staged: Staged, clocks: Clocks) -> tuple[Unfinished | None, int, int]:
        """Write the state under a dot-name: (the folder on rank 0 and None elsewhere, its bytes, the checksum of the
        tensors of all ranks).

        On return every file and the folder are on disk; it only has to be renamed. Raises SaveFailed on every rank
        when any of them could not do its part; nothing is left behind then.
        """
        unfinished, failure = self._make(clocks) if self._fellows.rank == 0 else (None, "")
        try:
            fits = self._repeat is not None and self._repeat.fits(staged)
            asked = self._fellows.all((str(unfinished.path) if unfinished else "", failure, fits))
            place, failure, _ = asked[0]
            if failure:
                raise SaveFailed(failure)
            if not all(fits for _, _, fits in asked):
                self._repeat = None  # on every rank: what they repeat must stem from one save
            part, failure = self._write_part(Path(place), staged, clocks)
            parts = self._fellows.all((part, failure))
            if failures := [f"rank {rank}: {why}" for rank, (_, why) in enumerate(parts) if why]:
                raise SaveFailed("; ".join(failures))
            sealed = self._seal(unfinished, [each for each, _ in parts], clocks) if unfinished else (0, "")
            size, failure = self._fellows.first(sealed)
            if failure:
                raise SaveFailed(failure)
        except BaseException:
            if unfinished is not None:
                unfinished.remove()
            raise
        return unfinished, size, total(part[2] for part, _ in parts)

    def _make(self, clocks: Clocks) -> tuple[Unfinished | None, str]:
        try:
            return Unfinished(self._folder, writer=self._writer, lineage=clocks.lineage), ""
        except OSError as error:
            return None, f"cannot make a folder: {error}"

    def _write_part(self, path: Path, staged: Staged, clocks: Clocks) -> tuple[_Part, str]:
        """This rank's files, with their digests: ((files, keys, checksum), failure)."""
        try:
            if self._repeat is None:
                return self._stock(path, staged, clocks), ""
            self._failpoint("save_write", step=clocks.step)
            return (self._repeat.write(path, staged, secret=self._secret), {}, _sum(staged)), ""
        # DCP has told every rank of any rank's failure by now; its own exception is no Exception.
        except (Exception, CheckpointException) as error:  # noqa: BLE001
            return ({}, {}, 0), _why(error)

    def _stock(self, path: Path, staged: Staged, clocks: Clocks) -> _Part:
        """DCP's save, then the digests of the files that this rank wrote."""
        rank = self._fellows.rank
        stock = StockWriter(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a missing process group: one rank is a group too
            save(
                dict(staged.tensors),
                storage_writer=stock,
                planner=_Planner(lambda: self._failpoint("save_write", step=clocks.step)),
                process_group=self._fellows.group,
                no_dist=self._fellows.group is None,
            )
        name = f"__{rank}_0.distcp"
        files = {
            own: File((path / own).stat().st_size, file_digest(path / own, secret=self._secret))
            for own in ([METADATA, name] if rank == 0 else [name])
        }
        shards = {key: describe(tensor) for key, tensor in staged.tensors.items()}
        keys = {key: Key(shard.dtype, shard.shape) for key, shard in shards.items()}
        # Last: a rank that fails has nothing to repeat, so the next save is stock on all.
        self._repeat = Repeat.learned(
            path, name, staged, stock.written, digest=files[name].digest, secret=self._secret, first=rank == 0
        )
        return files, keys, _sum(staged)

    def _seal(self, unfinished: Unfinished, parts: list[_Part], clocks: Clocks) -> tuple[int, str]:
        """Rank 0, last: the manifest, and everything durable: (bytes, failure)."""
        self._keys = {name: key for _, keys, _ in parts for name, key in keys.items()} or self._keys
        manifest = Manifest(
            clocks=clocks,
            keys=self._keys,
            files={name: file for files, _, _ in parts for name, file in sorted(files.items())},
            written=time.time(),
            writer=self._writer,
            checksum=total(part for _, _, part in parts),
        )
        try:
            write_durably(unfinished.path / MANIFEST, encode(manifest, secret=self._secret))
            sync_folder(unfinished.path)
        except OSError as error:
            return 0, f"cannot write {MANIFEST}: {error}"
        return manifest.bytes, ""


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
    """One checkpoint that is written once. Collective; as ``FolderWriter.write``."""
    once = FolderWriter(folder, fellows=fellows, writer=writer, secret=secret, failpoint=failpoint)
    return once.write(Staged(tensors), clocks)


def _sum(staged: Staged) -> int:
    return total(int(checksum(tensor)) for tensor in staged.tensors.values())


def _why(error: BaseException) -> str:
    """One line that says what failed, out of DCP's collected tracebacks too."""
    if isinstance(error, CheckpointException):
        failures = (f"rank {rank}: {why[0]!r}" for rank, why in error.failures.items())
        return "; ".join(failures)
    return f"{type(error).__name__}: {error}"
