"""How do the weights of a model and foreign weights (Hugging Face's, Meta's) fit together, and how are ours filled?

A model describes the pairing once, as data (``WeightMap``); reading a slice, loading a shard, exporting and importing
all follow it. Values are moved and, if asked, cast; never computed with. A foreign folder with a name too few or too
many is refused with the whole list before any tensor is touched. Called by the trainer and by the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from checkpointing.errors import CheckpointError
from checkpointing.state import MODEL, describe, local

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in: fp32 holds each of them to the bit."""


def _itself(tensor: Tensor) -> Tensor:
    return tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weight:
    """One parameter and its counterpart, which has the same shape."""

    name: str
    """Ours, as the bare model names it."""
    theirs: str
    shape: tuple[int, ...]
    block: int = 1
    """Rows change places only within blocks of so many, so any run of whole blocks can be converted by itself."""
    to_theirs: Callable[[Tensor], Tensor] = _itself
    """From whole blocks of our rows to theirs."""
    to_ours: Callable[[Tensor], Tensor] = _itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightMap:
    """All parameters of a model, each with its counterpart."""

    weights: tuple[Weight, ...]
    """In the model's order."""
    repeats: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of a tied model: a foreign name that may be there too -> the foreign name whose bits it must have."""
    ignored: tuple[str, ...] = ()
    """Ends of foreign names that are no weights, but tables which can be computed."""


class WeightSource(Protocol):
    """Foreign weights on disk."""

    @property
    def where(self) -> str:
        """For messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the whole tensors, by foreign name."""
        ...

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A part of a tensor, on the CPU. Raises CheckpointError."""
        ...


def whole(shape: Sequence[int]) -> tuple[slice, ...]:
    """The region that is all of a tensor."""
    return tuple(slice(0, extent) for extent in shape)


def misfits(shapes: Mapping[str, tuple[int, ...]], pairs: WeightMap) -> list[str]:
    """What keeps foreign weights of these names and shapes from being this model's; empty when they fit. Pure."""
    expected = {weight.theirs: weight.shape for weight in pairs.weights}
    known = {**expected, **{again: expected[first] for again, first in pairs.repeats.items()}}
    found = {name: shape for name, shape in shapes.items() if not name.endswith(pairs.ignored or ("\0",))}
    problems = []
    if missing := [name for name in expected if name not in found]:
        problems.append("missing: " + ", ".join(missing))
    if extra := sorted(found.keys() - known.keys()):
        problems.append("unknown: " + ", ".join(extra))
    problems += [
        f"{name} is {list(found[name])}, the model has {list(known[name])}"
        for name in sorted(known.keys() & found.keys())
        if found[name] != known[name]
    ]
    return problems


def check_fit(source: WeightSource, pairs: WeightMap) -> None:
    """Raises CheckpointError with every name that is missing, unknown or of another shape, and where a repeated tensor
    of a tied model is not the one that it repeats."""
    if problems := misfits(source.shapes, pairs):
        raise CheckpointError(f"{source.where} does not hold this model's weights: " + "; ".join(problems))
    for again, first in pairs.repeats.items():
        if again in source.shapes and not _same(source, again, first):
            raise CheckpointError(f"{source.where}: {again} differs from {first}, but the model is tied: it has one")


def read_whole(source: WeightSource, weight: Weight) -> Tensor:
    """A whole parameter in our layout, in the dtype it is stored in. Raises CheckpointError."""
    return weight.to_ours(_floats(source, weight.theirs, whole(weight.shape)))


def load_weights(source: WeightSource, pairs: WeightMap, tensors: Mapping[str, Tensor]) -> int:
    """Fill this rank's shards of the model's parameters among ``tensors`` (a closed list) in place: bytes read.

    Each rank reads the slices that its shards need and nothing else; no collectives. Values are cast to the dtype of
    the parameters. Raises CheckpointError, before any is filled when names or shapes do not fit.
    """
    check_fit(source, pairs)
    by_name = {MODEL + weight.name: weight for weight in pairs.weights}
    mine = {name: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    if strange := sorted(mine.keys() - by_name.keys()):
        raise CheckpointError(f"these parameters have no counterpart in foreign weights: {', '.join(strange)}")
    size = 0
    for name, tensor in mine.items():
        shard = describe(tensor)
        if shard.empty:
            continue
        weight = by_name[name]
        region, inside = _aligned(shard.offset, shard.size, block=weight.block)
        found = weight.to_ours(_floats(source, weight.theirs, region))
        size += found.nbytes
        with torch.no_grad():
            local(tensor).copy_(found[inside])
    return size


def _aligned(offset: Sequence[int], size: Sequence[int], *, block: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """(the region with its rows widened to whole blocks, where the asked part lies in it)."""
    region = [slice(start, start + extent) for start, extent in zip(offset, size, strict=True)]
    inside = [slice(0, extent) for extent in size]
    if region and block > 1:
        first = offset[0] // block * block
        last = -(-(offset[0] + size[0]) // block) * block
        region[0] = slice(first, last)
        inside[0] = slice(offset[0] - first, offset[0] - first + size[0])
    return tuple(region), tuple(inside)


def _same(source: WeightSource, a: str, b: str) -> bool:
    """Whether two tensors have the same bits, compared a piece at a time."""
    return all(torch.equal(source.read(a, region), source.read(b, region)) for region in _pieces(source.shapes[a]))


def _pieces(shape: Sequence[int], *, numbers: int = 16 << 20) -> Iterator[tuple[slice, ...]]:
    """Regions along the first dim, of about ``numbers`` numbers each."""
    width = 1
    for extent in shape[1:]:
        width *= extent
    rows = max(1, numbers // max(1, width))
    for first in range(0, shape[0], rows):
        yield (slice(first, min(first + rows, shape[0])), *whole(shape[1:]))


def _floats(source: WeightSource, name: str, region: tuple[slice, ...]) -> Tensor:
    found = source.read(name, region)
    if found.dtype not in FLOATS:
        kinds = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
        raise CheckpointError(f"{source.where}: {name} is {found.dtype}, expected one of {kinds}")
    return found
