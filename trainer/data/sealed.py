"""How does a folder of the cache appear whole or not at all, and how is damage to it noticed?

A folder is written under a dot-name, its manifest last, then renamed; so a name without a dot is complete. The
manifest holds the size and digests of every file and a seal over itself. Opening checks seal, sizes and the digests of
each file's first and last MiB always, the digest of the whole file when it is small enough. A damaged folder is
refused by name and left alone: its user may want to look. Used for token stores and trained tokenizers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from trainer.data.errors import StoreError

MANIFEST = "manifest.json"
WHOLE_DIGEST_BELOW = 1 << 30
"""Bytes in a folder up to which opening it reads all of them."""
_EDGE = 1 << 20


def seal(building: Path, final: Path, *, fields: dict[str, Any]) -> None:
    """Give the finished files in ``building`` a manifest that also holds ``fields`` and rename the folder ``final``.

    When another process was first, ``building`` is dropped: both hold the same bytes.
    """
    files = {file.name: _describe(file) for file in sorted(building.iterdir()) if file.name != MANIFEST}
    manifest = {**fields, "files": files}
    manifest["seal"] = digest_of(manifest)
    with (building / MANIFEST).open("w") as file:
        json.dump(manifest, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    for name in files:
        _sync(building / name)
    _sync(building)
    try:
        building.rename(final)
    except OSError:
        if not (final / MANIFEST).exists():
            raise
        shutil.rmtree(building)
    _sync(final.parent)


def is_sealed(folder: Path) -> bool:
    """Whether a folder was completed once; says nothing about damage since."""
    return folder.is_dir()


def open_sealed(folder: Path, *, whole_below: int = WHOLE_DIGEST_BELOW) -> dict[str, Any]:
    """The verified manifest of a folder. Raises StoreError that names the damaged file and what to do."""
    manifest = _read_manifest(folder)
    files: dict[str, dict[str, Any]] = manifest["files"]
    whole = sum(described["bytes"] for described in files.values()) < whole_below
    for name, described in files.items():
        _check_file(folder / name, described, whole=whole)
    return manifest


def digest_of(value: Any) -> str:
    """blake3 (hex) of a JSON value, independent of the order of its keys."""
    return blake3(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """blake3 (hex) of a file's bytes."""
    return blake3().update_mmap(path).hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, log: Callable[[str], None]) -> Iterator[None]:
    """Hold an advisory lock on ``path`` among processes; the kernel releases it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process that prepares the same data ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        claimed = manifest.pop("seal")
        if digest_of(manifest) == claimed and isinstance(manifest["files"], dict):
            return {**manifest, "seal": claimed}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__}: {error})") from error
    raise _damaged(path, "does not match its own digest")


def _check_file(path: Path, described: dict[str, Any], *, whole: bool) -> None:
    try:
        size = path.stat().st_size
        if size != described["bytes"]:
            raise _damaged(path, f"has {size} bytes instead of {described['bytes']}")
        if _edges(path) != described["edges"] or (whole and file_digest(path) != described["blake3"]):
            raise _damaged(path, "does not match its digest")
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error})") from error


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} {why}. Delete the folder {path.parent} and start again; it will be built anew.")


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "edges": _edges(path), "blake3": file_digest(path)}


def _edges(path: Path) -> str:
    with path.open("rb") as file:
        hasher = blake3(file.read(_EDGE))
        file.seek(max(0, file.seek(0, os.SEEK_END) - _EDGE))
        return hasher.update(file.read(_EDGE)).hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
