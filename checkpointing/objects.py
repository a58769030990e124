"""How does a checkpoint live in an object store, which has no rename? The manifest, written last, is its commit marker.

Every other file is uploaded and its size asked for before the manifest follows, so a prefix with a manifest is complete
and one without is no checkpoint. Deleting takes the manifest away first. Reading goes through a local spool folder, so
that digests are verified on local bytes before anything is unpickled. Any file system of fsspec will do; ``s3`` and
``gs`` need their plugins.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec  # type: ignore[import-untyped]

from checkpointing.errors import BadCheckpoint, CheckpointError
from checkpointing.folder import ASIDE, Unfinished
from checkpointing.manifest import MANIFEST, Manifest, check_files, decode
from checkpointing.places import Keep
from checkpointing.resume import Found, PassedOver, Survey
from checkpointing.retention import abandoned, fenced_off, newest_first, retain
from configs.words import Lineage

_log = logging.getLogger(__name__)
_DAMAGED = "DAMAGED.txt"
UNFINISHED = f"no {MANIFEST}: it is being written, or its writer died"
"""Why a prefix is no checkpoint; it does not keep a run from starting."""
_PLUGINS = {"s3": "s3fs", "gs": "gcsfs"}
T = TypeVar("T")


class ObjectPlace:
    """The checkpoints below one URL. ``spool`` is a local folder of this group alone."""

    def __init__(self, url: str, *, spool: Path, secret: bytes | None) -> None:
        """Raises CheckpointError if there is no such kind of store here."""
        scheme = url.partition("://")[0]
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **({"auto_mkdir": True} if scheme == "file" else {}))
        except ImportError as error:
            plugin = _PLUGINS.get(scheme, scheme)
            raise CheckpointError(f"{url!r} needs fsspec's plugin {plugin}: {error}") from error
        except ValueError as error:
            raise CheckpointError(f"{url!r} names no object store: {error}") from error
        self._root = str(root).rstrip("/")
        self._url = url
        self._spool = spool
        self._secret = secret

    def holds(self, lineage: Lineage) -> bool:
        """It is there, whole by manifest and sizes, and nobody has noted damage."""
        try:
            self._glance(lineage)
        except (BadCheckpoint, OSError):
            return False
        return True

    def publish(self, unfinished: Unfinished) -> None:
        """Upload it, the manifest last; then the local copy goes. Raises OSError."""
        lineage = unfinished.lineage
        if self._try(lambda: self._fs.exists(self._at(lineage))):
            self._set_aside(lineage, "it was bad or unfinished when a good one of the same name was written")
        sizes = {path.name: path.stat().st_size for path in unfinished.path.iterdir() if path.name != MANIFEST}
        for name in sizes:
            self._try(partial(self._fs.put_file, str(unfinished.path / name), self._at(lineage, name)))
        stored = self._sizes(lineage)
        if wrong := sorted(name for name, size in sizes.items() if stored.get(name) != size):
            raise OSError(f"uploaded, but not there as a whole: {', '.join(wrong)}")
        manifest = (unfinished.path / MANIFEST).read_bytes()
        self._try(lambda: self._fs.pipe_file(self._at(lineage, MANIFEST), manifest))
        unfinished.remove()

    def let_go(self, durable: Lineage, keep: Keep) -> None:
        """Raises OSError; what is left is tried again at the next save. Unfinished ones older than all that stay go."""
        names = self._names()
        whole = {lineage for lineage in names if MANIFEST in self._sizes(lineage)}
        decided = retain(whole, durable=durable, keep_latest_k=keep.latest_k, keep_every=keep.every)
        for lineage, reason in decided.set_aside.items():
            _log.warning("set aside %s: %s", lineage.folder, reason)
            self._set_aside(lineage, reason)
        for lineage in decided.delete:
            self._delete(lineage)
        oldest = newest_first(decided.keep)[-1]
        for lineage in names - whole:
            if lineage != oldest and newest_first([lineage, oldest])[-1] == lineage:
                self._delete(lineage)

    def cut_off(self, fences: Sequence[Lineage]) -> list[tuple[str, str]]:
        """Set aside what rollbacks cut off: (name, reason) of each. Raises OSError."""
        doomed = fenced_off(self._names(), fences)
        for lineage, reason in doomed.items():
            self._set_aside(lineage, reason)
        return [(lineage.folder, reason) for lineage, reason in doomed.items()]

    def survey(self) -> Survey:
        """Every checkpoint by manifest and sizes; their paths are where ``pull`` puts them. Raises CheckpointError."""
        found: list[Found] = []
        passed: list[PassedOver] = []
        unfinished: list[PassedOver] = []
        try:
            for lineage in self.candidates():
                if MANIFEST not in self._sizes(lineage):
                    unfinished.append(PassedOver(lineage.folder, UNFINISHED))
                    continue
                try:
                    manifest = self._glance(lineage)
                except BadCheckpoint as error:
                    passed.append(PassedOver(lineage.folder, str(error)))
                    continue
                newer = next((each.lineage for each in found if abandoned(lineage, confirmed=each.lineage)), None)
                if newer is not None:
                    reason = f"its branch was rolled back: {newer} was confirmed later"
                    passed.append(PassedOver(lineage.folder, reason))
                    continue
                found.append(Found(lineage, self._spool / lineage.folder, manifest, False))
        except OSError as error:
            raise CheckpointError(f"{self._url} cannot be read: {error}") from error
        return Survey(self._url, tuple(found), tuple(passed), tuple(unfinished))

    def candidates(self) -> list[Lineage]:
        """Everything that is named like a checkpoint, newest first. Raises OSError."""
        return newest_first(self._names())

    def objects(self, lineage: Lineage) -> Mapping[str, int]:
        """What lies under the name of a checkpoint, with sizes; nothing when there is none. Raises CheckpointError."""
        try:
            return self._sizes(lineage)
        except OSError as error:
            raise CheckpointError(f"{self._url} cannot be read: {error}") from error

    def pull(self, path: Path) -> str:
        """Download the checkpoint that ``survey`` gave this path: why that failed, or nothing. Rank 0."""
        lineage = Lineage.parse_folder(path.name)
        assert lineage is not None
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(parents=True)
            for name in self._sizes(lineage):
                self._try(partial(self._fs.get_file, self._at(lineage, name), str(path / name)))
        except OSError as error:
            return f"{self._url}/{lineage.folder} cannot be downloaded: {error}"
        return ""

    def mark_damaged(self, path: Path, reason: str) -> None:
        """Note that the digests of what was pulled to ``path`` do not verify. Raises OSError."""
        lineage = Lineage.parse_folder(path.name)
        assert lineage is not None
        text = f"{reason} (delete this object when it is repaired)\n".encode()
        self._try(lambda: self._fs.pipe_file(self._at(lineage, _DAMAGED), text))

    def _glance(self, lineage: Lineage) -> Manifest:
        sizes = self._sizes(lineage)
        if _DAMAGED in sizes:
            raise BadCheckpoint(
                self._try(lambda: self._fs.cat_file(self._at(lineage, _DAMAGED))).decode(errors="replace").strip()
            )
        if MANIFEST not in sizes:
            raise BadCheckpoint(f"no {MANIFEST}: the save was not finished, or it is not one of ours")
        data: bytes = self._try(lambda: self._fs.cat_file(self._at(lineage, MANIFEST)))
        manifest = decode(data, secret=self._secret)
        check_files(lineage, manifest, sizes)
        return manifest

    def _names(self) -> set[Lineage]:
        entries = self._list(self._root)
        return {found for name in entries if (found := Lineage.parse_folder(name)) is not None}

    def _sizes(self, lineage: Lineage) -> Mapping[str, int]:
        entries = self._list(self._at(lineage)).items()
        return {name: int(entry.get("size") or 0) for name, entry in entries if entry.get("type") != "directory"}

    def _list(self, path: str) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()  # what another process wrote counts
        try:
            entries = self._try(lambda: self._fs.ls(path, detail=True))
        except FileNotFoundError:
            return {}
        return {str(entry["name"]).rstrip("/").rpartition("/")[2]: entry for entry in entries}

    def _delete(self, lineage: Lineage) -> None:
        if MANIFEST in self._sizes(lineage):
            self._try(lambda: self._fs.rm_file(self._at(lineage, MANIFEST)))
        self._try(lambda: self._fs.rm(self._at(lineage), recursive=True))

    def _set_aside(self, lineage: Lineage, reason: str) -> None:
        """Copies under another name, the marker away first: readers never see a half."""
        target = f"{self._root}/{ASIDE}{lineage.folder}"
        for name in sorted(self._sizes(lineage), key=lambda name: name != MANIFEST):
            self._try(partial(self._fs.mv, self._at(lineage, name), f"{target}/{name}"))
        self._try(lambda: self._fs.pipe_file(f"{target}/REASON.txt", f"{reason}\n".encode()))

    def _at(self, lineage: Lineage, *names: str) -> str:
        return "/".join((self._root, lineage.folder, *names))

    def _try(self, act: Callable[[], T]) -> T:
        """Plugins raise what their libraries raise; callers here know OSError."""
        try:
            return act()
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
