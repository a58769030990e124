"""Which text does a data set name stand for?

A data set is a function from ``training.dataset_path`` to a ``Source``: files in a fixed order and how to read the
documents of one. Built in are ``python_stdlib``, ``text`` and ``jsonl``. A user's own is registered by the module that
``experimental.custom_import`` names, which every process imports before it prepares data.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.data.errors import DataError
from trainer.data.sources import Source, jsonl, python_stdlib, text

OpenSource = Callable[[str], Source]
"""Called with ``training.dataset_path`` ("" when it is not set). Raises DataError when it cannot serve."""

_known: dict[str, OpenSource] = {"python_stdlib": python_stdlib, "text": text, "jsonl": jsonl}


def register(name: str, open_source: OpenSource) -> None:
    """Make a data set known under a name of its own. Raises ValueError when the name is taken by another."""
    if _known.get(name, open_source) is not open_source:
        raise ValueError(f"a data set named {name!r} is registered already")
    _known[name] = open_source


def known() -> tuple[str, ...]:
    """The names that ``training.dataset`` accepts."""
    return tuple(sorted(_known))


def open_source(name: str, path: str) -> Source:
    """The files behind ``training.dataset`` and ``training.dataset_path``. Raises DataError."""
    if name not in _known:
        raise DataError(f"training.dataset: unknown data set {name!r}; known: {', '.join(known())}")
    source = _known[name](path)
    if not source.files:
        raise DataError(f"training.dataset {name!r}: no file to read in {source.root}")
    return source
