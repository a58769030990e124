"""How is one tensor at a time read out of, and written into, a checkpoint, so that a model need not fit into memory?

``OpenCheckpoint`` verifies a folder once and then reads whole tensors by name. ``write_seed`` makes a checkpoint of a
model's weights alone, at step 0, out of tensors that are read only when DCP writes them. Both run in one process,
without a process group, and never change a folder that exists.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing.errors import CheckpointError
from checkpointing.folder import sync_folder, write_durably
from checkpointing.manifest import MANIFEST, File, Key, Manifest, encode, file_digest
from checkpointing.state import MODEL, Clocks
from checkpointing.verifying import trusted


class OpenCheckpoint:
    """A checkpoint that verified. Raises CheckpointError when it does not, or when a tensor cannot be read."""

    def __init__(self, path: Path, *, secret: bytes | None) -> None:
        self.path = path
        self.manifest = trusted(path, secret=secret)
        self._reader = _Reader(path)

    @property
    def weights(self) -> dict[str, Key]:
        """The model's parameters, by the names of the bare model."""
        keys = self.manifest.keys.items()
        return {name.removeprefix(MODEL): key for name, key in keys if name.startswith(MODEL)}

    def read(self, name: str) -> torch.Tensor:
        """A whole parameter."""
        key = self.manifest.keys[MODEL + name]
        whole = torch.empty(key.shape, dtype=getattr(torch, key.dtype))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one process is meant
                dcp_load({MODEL + name: whole}, storage_reader=self._reader, no_dist=True)
        except (CheckpointException, OSError, RuntimeError) as error:
            raise CheckpointError(f"{self.path}: {name} cannot be read: {error}") from None
        return whole


class _Reader(FileSystemReader):
    """Stock, but ``.metadata`` is unpickled once and not for every tensor."""

    _kept: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._kept is None:
            self._kept = super().read_metadata(*args, **kwargs)
        return self._kept


def write_seed(
    out: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], torch.Tensor],
    *,
    writer: str,
    secret: bytes | None,
    beside: Callable[[Path], None] = lambda _: None,
) -> Manifest:
    """A checkpoint ``out`` of model weights alone (fp32, as they are trained), step 0, whole or not at all.

    ``shapes`` by the bare model's names; ``read`` gives a whole tensor of any floating dtype, once for each; ``beside``
    may put further files into the folder. Raises FileExistsError, OSError, and what the two raise.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; it is not written over")
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        announced = {MODEL + name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one process is meant
            dcp_save(
                dict(announced),
                # A file for each tensor: DCP holds all tensors of a file until it is finished.
                storage_writer=FileSystemWriter(building, single_file_per_rank=False, sync_files=True, overwrite=False),
                planner=_Late(lambda key: read(key.removeprefix(MODEL)).float()),
                no_dist=True,
            )
        manifest = _manifest(building, shapes, writer=writer, secret=secret)
        beside(building)
        write_durably(building / MANIFEST, encode(manifest, secret=secret))
        sync_folder(building)
        building.rename(out)
        sync_folder(out.parent)
    except CheckpointException as error:  # no Exception; it holds what was raised inside DCP
        why = next(iter(error.failures.values()))[0]
        raise why from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return manifest


class _Late(DefaultSavePlanner):
    """Stock, but a tensor is asked for when its turn comes to be written."""

    def __init__(self, read: Callable[[str], torch.Tensor]) -> None:
        super().__init__()
        self._read = read

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._read(write_item.index.fqn)


def _manifest(folder: Path, shapes: Mapping[str, tuple[int, ...]], *, writer: str, secret: bytes | None) -> Manifest:
    threads = len(os.sched_getaffinity(0))

    def file(path: Path) -> File:
        return File(path.stat().st_size, file_digest(path, secret=secret, threads=threads))

    return Manifest(
        clocks=Clocks(step=0, quorum_id=0, cursor=0, tokens=0, seed=0, config_digest=""),
        keys={MODEL + name: Key("float32", tuple(shape)) for name, shape in shapes.items()},
        files={path.name: file(path) for path in sorted(folder.iterdir()) if path.is_file()},
        written=time.time(),
        writer=writer,
    )
