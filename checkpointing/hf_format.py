"""How are weights laid out in a Hugging Face model folder, and how is one read and written without holding it whole?

Weights are in one ``model.safetensors``, or in ``model-00001-of-0000N.safetensors`` with an index,
``model.safetensors.index.json``, that says which file holds each tensor ("safetensors" and "Big models" in Hugging
Face's documentation). Headers are read first; tensors, or slices of them, when asked for. Written by one process, file
by file: it holds one file's tensors at a time. Knows no model and no tokenizer.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from checkpointing.errors import CheckpointError
from checkpointing.folder import sync_folder, write_durably
from checkpointing.plain import read_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
FILE_LIMIT = 5_000_000_000
"""Bytes in one file, unless a single tensor is larger."""

Progress = Callable[[str], None]
"""Told of each file that is finished."""


class SafetensorsFolder:
    """The weights in a folder; a ``WeightSource``. Raises CheckpointError when a file is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        for path in _weight_files(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if name in self.shapes:
                    raise CheckpointError(f"{folder}: {name} is in two files")
                self.shapes[name] = tuple(file.get_slice(name).get_shape())
                self._files[name] = file
        if missing := sorted(set(_indexed(folder)) - self.shapes.keys()):
            raise CheckpointError(f"{folder}: {INDEX} names tensors that no file holds: {', '.join(missing)}")

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A part of a tensor; no more than its rows are read."""
        try:
            part = self._files[name].get_slice(name)
            tensor: Tensor = part[region] if region else self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.where}: {name} cannot be read: {error}") from None
        return tensor


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a model folder. Raises CheckpointError."""
    return _json(folder / CONFIG)


def write_safetensors(
    folder: Path,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    sizes: Mapping[str, int],
    limit: int = FILE_LIMIT,
    progress: Progress = lambda _: None,
) -> int:
    """Write ``tensors`` (CPU; taken one by one) into the existing ``folder``, durably: bytes of weights.

    ``sizes`` gives the bytes of each, in the same order, because the names of the files say how many there will be.
    Raises OSError, and CheckpointError when the library cannot write a file.
    """
    files = split_files(sizes, limit=limit)
    waiting = iter(tensors)
    for file, names in files.items():
        part = {name: tensor.contiguous() for name, tensor in _next(waiting, names)}
        mode = _mode_of_new(folder / file)
        try:
            save_file(part, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise CheckpointError(f"{folder / file} cannot be written: {error}") from None
        _sync_file(folder / file, mode=mode)
        progress(f"{file}: {len(part)} tensors, {sum(tensor.nbytes for tensor in part.values()) / 1e6:,.1f} MB")
        del part  # else it would still be held while the next one is filled
    total = sum(sizes.values())
    if list(files) != [SINGLE]:
        where = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        write_json(folder / INDEX, index)
    sync_folder(folder)
    return total


def split_files(sizes: Mapping[str, int], *, limit: int) -> dict[str, list[str]]:
    """Which tensors go into which file: in order, a new file before one would grow beyond ``limit`` bytes. Pure."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > limit:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": names for i, names in enumerate(groups, start=1)}


def write_json(path: Path, value: Any) -> None:
    """A new JSON file, durably. Raises OSError."""
    write_durably(path, (json.dumps(value, indent=2) + "\n").encode())


def _next(waiting: Iterator[tuple[str, Tensor]], names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        found, tensor = next(waiting)
        assert found == name, f"{found} came where {name} was announced"
        yield found, tensor


def _weight_files(folder: Path) -> list[Path]:
    """Every file of weights: those that the index names, else the single one, else all there are."""
    if (folder / INDEX).exists():
        names = sorted(set(_indexed(folder).values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise CheckpointError(f"{folder / INDEX} names files outside the folder: {', '.join(outside)}")
        return [folder / name for name in names]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise CheckpointError(f"{folder} holds no weights: neither {INDEX} nor a .safetensors file")
    return found


def _indexed(folder: Path) -> dict[str, str]:
    """Tensor -> file, as the index says; empty without one."""
    if not (folder / INDEX).exists():
        return {}
    found = _json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map")
    return found


def _open(path: Path) -> Any:
    if not path.is_file():  # a FIFO would be waited for
        raise CheckpointError(f"{path} cannot be read: there is no such file")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _mode_of_new(path: Path) -> int:
    """What the umask, or the folder's default rights, make of a new file; ``path`` is made, empty."""
    with path.open("xb") as file:
        return stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def _sync_file(path: Path, *, mode: int) -> None:
    """Make a file durable, with the rights of any other: the library writes one that its owner alone may read."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


EXPORT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""By the names of ``checkpoint.export_dtype``."""
