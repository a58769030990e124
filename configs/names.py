"""Names a user may type: shipped configs, and the known name nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Name -> file of every config that comes with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None when none is alike."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The same for dotted keys: its own section first, then the same last name elsewhere, then anything alike."""
    candidates = tuple(known)
    section, _, name = key.rpartition(".")
    inside = {k.rpartition(".")[2]: k for k in candidates if k.rpartition(".")[0] == section}
    here = nearest(name, inside)
    if here is not None:
        return inside[here]
    elsewhere = [k for k in candidates if k.rpartition(".")[2] == name]
    return elsewhere[0] if elsewhere else nearest(key, candidates)


EACH_GROUP = "{group}"
"""In ``checkpoint.folder``: groups that share no disk, or should not share a folder, each have one of their own."""


def own_folder(folder: str, *, group: str) -> str:
    """``checkpoint.folder`` as ``group`` uses it."""
    return folder.replace(EACH_GROUP, group)


URL_SCHEMES = ("file", "s3", "gs")
"""Of ``checkpoint.folder``; memory:// would end with its process."""


def is_url(folder: str) -> bool:
    """Whether ``checkpoint.folder`` names an object store."""
    return "://" in folder
