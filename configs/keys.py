"""The schema as a flat list of dotted keys: what loading, dumping, digests and dry runs walk over."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

from configs.fields import Section
from configs.schema import Config

Mark = TypeVar("Mark")

RENAMED = {
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "validation.enabled": "validation.enable",
    "memory_estimation.enabled": "memory_estimation.enable",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.batch_size": "training.local_batch_size",
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
}
"""Names of older torchtitan files, and what they are called since 0.2."""


@functools.cache
def leaves() -> dict[str, FieldInfo]:
    """Every dotted key that holds a value, in schema order."""
    return {key: field for key, field in _walk(Config, "") if not _is_section(field)}


@functools.cache
def sections() -> frozenset[str]:
    """Every dotted name of a table."""
    return frozenset(key for key, field in _walk(Config, "") if _is_section(field))


@functools.cache
def adapter(key: str) -> TypeAdapter[Any]:
    """The strict validator of one key."""
    field = leaves()[key]
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def mark(key: str, kind: type[Mark]) -> Mark | None:
    """The mark of that kind on a key, if it carries one."""
    return next((m for m in leaves()[key].metadata if isinstance(m, kind)), None)


def value_of(config: Config, key: str) -> Any:
    """The value under a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        table = tree
        for name in path:
            table = table.setdefault(name, {})
        table[last] = value
    return tree


def holds(key: str, kind: type) -> bool:
    """Whether a value of that Python type may stand under the key."""
    return kind in _kinds(leaves()[key].annotation)


def is_list(key: str) -> bool:
    """Whether the key takes a list."""
    return holds(key, tuple)


def _walk(model: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if _is_section(field):
            assert isinstance(field.annotation, type)
            yield from _walk(field.annotation, f"{prefix}{name}.")


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _kinds(annotation: Any) -> frozenset[type]:
    """The plain types an annotation allows, one level deep."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return frozenset().union(*(_kinds(arg) for arg in get_args(annotation)))
    if origin is not None and not isinstance(origin, type):
        return frozenset(type(arg) for arg in get_args(annotation))  # Literal
    kind = origin or annotation
    return frozenset({kind}) if isinstance(kind, type) else frozenset()
