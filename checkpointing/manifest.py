"""Is this checkpoint whole, and is it ours? The ``manifest.json`` of each folder: clocks, keys, digests of every file.

It is written last and sealed by a digest of its own, so a folder with a manifest that verifies is complete to the byte.
With a secret, seal and file digests are keyed, and an unkeyed manifest is refused. ``.metadata`` is a pickle: nobody
may open it before its digest from here has been verified. DCP's own files stay as they are, so stock tools read them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from checkpointing.errors import BadCheckpoint
from checkpointing.plain import parse_json, read_regular
from checkpointing.state import Clocks
from configs.words import Lineage

MANIFEST = "manifest.json"
METADATA = ".metadata"
_FORMAT = "phalanx checkpoint 1"
_DIGEST_LETTERS = 64
_LAST_SECOND = 253_402_300_799
"""Of the year 9999: a later time has no calendar."""


@dataclasses.dataclass(frozen=True)
class File:
    """What a file of the checkpoint must be."""

    size: int
    """Bytes."""
    digest: str
    """blake3, hex; keyed where a secret is set."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A tensor of the checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint folder says of itself."""

    clocks: Clocks
    keys: Mapping[str, Key]
    files: Mapping[str, File]
    written: float
    """Unix seconds."""
    writer: str
    """``group.incarnation``."""
    checksum: int | None = None
    """Over the ranks' staged tensors (``checksum.py``), in the mesh that wrote them; None: not taken."""

    @property
    def lineage(self) -> Lineage:
        """Of the state in the folder."""
        return self.clocks.lineage

    @property
    def bytes(self) -> int:
        """Size of all files that the manifest vouches for."""
        return sum(file.size for file in self.files.values())


def file_digest(path: Path, *, secret: bytes | None, threads: int = 1) -> str:
    """blake3 of a file, hex, keyed where there is a secret; a large file is hashed by ``threads``. Raises OSError."""
    return hasher(secret, threads).update_mmap(path).hexdigest()


def encode(manifest: Manifest, *, secret: bytes | None) -> bytes:
    """The bytes of ``manifest.json``, sealed."""
    body: dict[str, Any] = {
        "format": _FORMAT,
        "keyed": secret is not None,
        "lineage": str(manifest.lineage),
        "written": manifest.written,
        "writer": manifest.writer,
        "checksum": manifest.checksum,
        "clocks": manifest.clocks.to_json(),
        "keys": {name: [key.dtype, list(key.shape)] for name, key in manifest.keys.items()},
        "files": {name: dataclasses.asdict(file) for name, file in manifest.files.items()},
    }
    # A line for each key. Not indent=1: json leaves its fast path then, which costs more than all else here.
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**body, "seal": _seal(body, secret)}.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_manifest(folder: Path, *, secret: bytes | None) -> Manifest:
    """The manifest of a checkpoint folder; its seal is verified, the files are not looked at. Raises BadCheckpoint."""
    try:
        data = read_regular(folder / MANIFEST)
    except FileNotFoundError:
        raise BadCheckpoint(f"no {MANIFEST}: the save was not finished, or it is not one of ours") from None
    except OSError as error:
        raise BadCheckpoint(f"{MANIFEST} cannot be read: {error}") from None
    return decode(data, secret=secret)


def decode(data: bytes, *, secret: bytes | None) -> Manifest:
    """Inverse of ``encode``, once the seal is verified. Raises BadCheckpoint."""
    try:
        body = parse_json(data)
    except ValueError as error:
        raise BadCheckpoint(f"{MANIFEST} cannot be read: {error}") from None
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise BadCheckpoint(f"{MANIFEST} is not in the format {_FORMAT!r}")
    if body.get("keyed") is not (secret is not None):
        state = "needs PHALANX_SECRET" if secret is None else "was written without the secret that is set now"
        raise BadCheckpoint(f"{MANIFEST} cannot be verified: it {state}")
    seal = str(body.pop("seal", ""))
    try:
        sealed = hmac.compare_digest(seal.encode(errors="replace"), _seal(body, secret).encode())
    except RecursionError:
        raise BadCheckpoint(f"{MANIFEST} cannot be read: it is nested too deeply") from None
    if not sealed:
        raise BadCheckpoint(f"{MANIFEST} is damaged: its seal does not fit")
    try:
        return Manifest(
            clocks=Clocks.from_json(body["clocks"]),
            keys={name: _key(name, found) for name, found in _table("keys", body["keys"]).items()},
            files={name: _file(name, found) for name, found in _table("files", body["files"]).items()},
            written=_time(body["written"]),
            writer=_text("writer", body["writer"]),
            checksum=_checksum(body.get("checksum")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{MANIFEST} is malformed: {error}") from None


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """The cheap check: name and manifest agree, every file is there with its size. Raises BadCheckpoint."""
    sizes = {}
    for name in manifest.files:
        with contextlib.suppress(OSError):
            found = (folder / name).stat()
            if stat.S_ISREG(found.st_mode):  # another kind may wait for ever when it is read
                sizes[name] = found.st_size
    check_files(Lineage.parse_folder(folder.name), manifest, sizes)


def check_files(named: Lineage | None, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """The same, of files that are known by name and size. Raises BadCheckpoint."""
    if named is not None and named != manifest.lineage:
        raise BadCheckpoint(f"the folder is named {named}, its manifest says {manifest.lineage}")
    if METADATA not in manifest.files:
        raise BadCheckpoint(f"{MANIFEST} does not vouch for {METADATA}")
    for name, file in manifest.files.items():
        if Path(name).name != name:
            raise BadCheckpoint(f"{name} lies outside the folder")
        if name not in sizes:
            raise BadCheckpoint(f"{name} is missing")
        if sizes[name] != file.size:
            raise BadCheckpoint(f"{name} has {sizes[name]} bytes instead of {file.size}")


def check_digests(folder: Path, manifest: Manifest, *, secret: bytes | None, names: Iterable[str]) -> None:
    """The full check of these files, after ``check_sizes``. Raises BadCheckpoint naming the first that differs."""
    for name in names:
        try:
            found = file_digest(folder / name, secret=secret)
        except OSError as error:
            raise BadCheckpoint(f"{name} cannot be read: {error}") from None
        if not hmac.compare_digest(found, manifest.files[name].digest):
            raise BadCheckpoint(f"{name} is damaged: its digest differs from the one in {MANIFEST}")


def _table(what: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{what} is no table")
    return found


def _key(name: str, found: Any) -> Key:
    if not (isinstance(found, list) and len(found) == 2 and isinstance(found[1], list)):
        raise ValueError(f"keys: {name!r} is not [dtype, shape]")
    dtype = _text(f"keys: the dtype of {name!r}", found[0])
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"keys: {name!r} has no dtype {dtype!r}")
    return Key(dtype, tuple(_whole(f"keys: the shape of {name!r}", extent) for extent in found[1]))


def _file(name: str, found: Any) -> File:
    os.fsencode(name)  # UnicodeEncodeError is a ValueError
    if "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"files: {name!r} is no file's name")
    table = _table(f"files: {name!r}", found)
    digest = _text(f"files: the digest of {name!r}", table["digest"])
    if len(digest) != _DIGEST_LETTERS or not digest.isascii():
        raise ValueError(f"files: {name!r} has no digest")
    return File(_whole(f"files: the size of {name!r}", table["size"]), digest)


def _text(what: str, found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{what} is no text")
    return found


def _whole(what: str, found: Any) -> int:
    """Kept to 64 bits, as everything is that was ever written here."""
    if type(found) is not int or not 0 <= found < 1 << 64:
        raise ValueError(f"{what} is no whole number")
    return found


def _checksum(found: Any) -> int | None:
    """As a collective wraps it, so it may be below 0."""
    if found is not None and type(found) is not int:
        raise ValueError("checksum is no whole number")
    return found


def _time(found: Any) -> float:
    if type(found) not in (int, float) or not 0 <= found <= _LAST_SECOND:  # NaN is not
        raise ValueError(f"written is {found!r}, no time in seconds")
    return float(found)


def _seal(body: Mapping[str, Any], secret: bytes | None) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hasher(secret).update(text.encode()).hexdigest()


def hasher(secret: bytes | None, threads: int = 1) -> blake3:
    """What digests of checkpoints are made with: keyed where there is a secret."""
    if secret is None:
        return blake3(max_threads=threads)
    key = blake3(secret, derive_key_context="phalanx checkpoint manifest and files").digest()
    return blake3(key=key, max_threads=threads)
