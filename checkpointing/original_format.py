"""How are original Llama weights laid out, and how is one tensor read out of several model-parallel files?

``consolidated.00.pth`` ... ``consolidated.NN.pth`` beside ``params.json`` (the "original" folder of Meta's
repositories). Each file is one rank of fairscale's model parallelism as Meta's reference code builds it
(github.com/meta-llama/llama3, ``llama/model.py``): column-parallel layers and the vocabulary are cut along the rows,
row-parallel layers (and the embedding of Llama 1 and 2) along the columns, norms are whole in every file. Which it is
follows from the shapes, so no layer is named here. Files are unpickled with ``weights_only`` and mapped, not read.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpointing.errors import CheckpointError
from checkpointing.plain import read_object

PARAMS = "params.json"
_UNREADABLE = (
    *(OSError, RuntimeError, EOFError, pickle.UnpicklingError),
    *(ValueError, TypeError, LookupError, AttributeError),
)
"""What torch's unpickler of tensors raises: the second row comes of pickles that were made up."""


class OriginalWeights:
    """The weights in such a folder; a ``WeightSource``. ``wholes`` are the shapes that the model's tensors have.

    Raises CheckpointError when a file cannot be read, is no plain state of tensors, or is cut in another way.
    """

    def __init__(self, folder: Path, *, wholes: Mapping[str, tuple[int, ...]]) -> None:
        self.where = str(folder)
        paths = sorted(folder.glob("consolidated.*.pth"))
        if not paths:
            raise CheckpointError(f"{folder} holds no original weights: no consolidated.*.pth")
        self._parts = [_open(path) for path in paths]
        names: list[set[str]] = [set(part) for part in self._parts]
        if odd := sorted(set().union(*names) - names[0].intersection(*names)):
            raise CheckpointError(f"{folder}: not in every file: {', '.join(odd)}")
        self._dim = {name: self._cut(name, wholes.get(name)) for name in self._parts[0]}
        self.shapes = {name: self._shape(name) for name in self._parts[0]}

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A part of a tensor, put together from the files that hold it."""
        dim = self._dim[name]
        if dim is None:
            return self._parts[0][name][region].clone()
        found, start = [], 0
        for part in self._parts:
            tensor = part[name]
            first = max(region[dim].start - start, 0)
            last = min(region[dim].stop - start, tensor.shape[dim])
            start += tensor.shape[dim]
            if first < last:
                found.append(tensor[(*region[:dim], slice(first, last), *region[dim + 1 :])])
        return torch.cat(found, dim=dim)

    def _cut(self, name: str, shape: tuple[int, ...] | None) -> int | None:
        """Along which dim the tensor is cut; None when every file holds it whole."""
        part = tuple(self._parts[0][name].shape)
        if len(self._parts) == 1 or shape is None or part == shape or len(part) != len(shape):
            return None
        differing = [dim for dim, (mine, extent) in enumerate(zip(part, shape, strict=True)) if mine != extent]
        return differing[0]

    def _shape(self, name: str) -> tuple[int, ...]:
        dim, shapes = self._dim[name], [tuple(part[name].shape) for part in self._parts]
        if dim is None:
            first = shapes[0]
        else:
            first = (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])
        flat = [shape if dim is None else (*shape[:dim], *shape[dim + 1 :]) for shape in shapes]
        if len(set(flat)) > 1:
            raise CheckpointError(f"{self.where}: the files hold parts of {name} that do not fit: {shapes}")
        return first


def read_params(folder: Path) -> dict[str, Any]:
    """``params.json``. Raises CheckpointError."""
    path = folder / PARAMS
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _open(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {reason}") from None
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise CheckpointError(f"{path} is no state of named tensors alone")
    return found
