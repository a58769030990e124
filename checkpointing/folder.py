"""What lies in the checkpoint folder? Names, and the few operations on whole folders that survive a crash at any point.

``step-...`` is a published checkpoint. A dot in front means that no reader may take it: ``.writing-WRITER-step-...`` is
being written, ``.deleting-WRITER-step-...`` is on its way out, ``.aside-step-...`` was found bad or rolled back and is
kept for a human. A published folder appears and disappears by one rename. Everything with another name is foreign and
left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from checkpointing.manifest import MANIFEST
from checkpointing.plain import read_regular
from configs.words import Lineage

WRITING = ".writing-"
DELETING = ".deleting-"
ASIDE = ".aside-"
_REASON = "REASON.txt"
_DAMAGED = "DAMAGED.txt"
_AT_ONCE = os.sysconf("SC_IOV_MAX")


class Unfinished:
    """A folder being written: locked while its writer lives, so that others can tell a dead one's leftovers."""

    def __init__(self, folder: Path, *, writer: str, lineage: Lineage) -> None:
        self.path = folder / f"{WRITING}{writer}-{lineage.folder}"
        self.lineage = lineage
        _remove(self.path)
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_folder(folder.parent)
        self.path.mkdir()
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: a successor of this group still cleans up
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def publish(self) -> None:
        """Make it a checkpoint, durably. A bad folder of that name is set aside. Raises OSError."""
        folder, name = self.path.parent, self.lineage.folder
        if (folder / name).exists():
            set_aside(folder / name, "it was bad when a good one of the same name was written")
        self.path.rename(folder / name)
        sync_folder(folder)
        self.release()

    def remove(self) -> None:
        """Drop it. Errors are ignored: what is left is cleaned up by a later start."""
        _remove(self.path)
        self.release()

    def release(self) -> None:
        """Give up the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def published(folder: Path) -> dict[Lineage, Path]:
    """Folders whose name and manifest file say that they are checkpoints. A missing folder has none."""
    return {lineage: path for lineage, path in candidates(folder).items() if (path / MANIFEST).exists()}


def candidates(folder: Path) -> dict[Lineage, Path]:
    """Everything that is named like a checkpoint. Raises OSError if the folder cannot be read."""
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return {}
    return {lineage: path for path in entries if (lineage := Lineage.parse_folder(path.name)) is not None}


def ours(name: str) -> bool:
    """Whether this module, or the note of a chosen step, gave a file or folder its name."""
    return Lineage.parse_folder(name) is not None or name.startswith((WRITING, DELETING, ASIDE, ".load-step.json"))


def clean_up(folder: Path, *, writer: str) -> Iterator[tuple[str, str]]:
    """Remove what dead writers left, yielding (name, reason). ``writer`` is ``group.incarnation`` of the caller.

    A predecessor in the caller's group is buried; another group's writer is dead when nobody holds its folder's lock.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        owner = _owner(path.name)
        if owner is None:
            continue
        reason = _leftover(path, owner, writer)
        if reason:
            _remove(path)
            yield path.name, reason


def set_aside(path: Path, reason: str) -> Path | None:
    """Move a published folder out of every reader's sight, with its reason. None when somebody else was faster."""
    target = path.with_name(ASIDE + path.name)
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        _remove(target)  # an earlier one of that name; not before: another group may just have moved this one there
        path.rename(target)
    with contextlib.suppress(OSError):  # the reason is for a human; the move is what counts
        (target / _REASON).write_text(reason + "\n")
    return target


def mark_damaged(path: Path, reason: str) -> None:
    """Note in a checkpoint that its digests do not verify, so that the next look passes over it without reading it all
    again; it stays where it is, for a run that has nothing else must not start afresh. Raises OSError."""
    (path / _DAMAGED).write_text(f"{reason} (delete this file when it is repaired)\n")
    sync_folder(path)


def damage(path: Path) -> str | None:
    """The note of ``mark_damaged``, if there is one."""
    try:
        return read_regular(path / _DAMAGED).decode(errors="replace").strip()
    except OSError:
        return None


def delete(path: Path, *, writer: str) -> None:
    """Delete a published folder; it disappears from readers at once and as a whole."""
    target = path.with_name(f"{DELETING}{writer}-{path.name}")
    with contextlib.suppress(FileNotFoundError):  # another group's retention was faster
        path.rename(target)
        _remove(target)


def limit_aside(folder: Path, *, keep: int) -> None:
    """Keep only the newest folders that were set aside (0: all), so that the disk stays flat."""
    found = [path for path in folder.glob(f"{ASIDE}step-*") if path.is_dir() and not path.is_symlink()]
    aside = sorted(found, key=_changed, reverse=True)
    for path in aside[keep:] if keep else []:
        _remove(path)


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written where the checkpoints lie, or None if nobody can say."""
    try:
        return shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
    except OSError:
        return None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, *pieces: bytes | memoryview) -> int:
    """A new file of these pieces, on the disk when it returns its size in bytes. Raises OSError."""
    left = [memoryview(piece) for piece in pieces if len(piece)]
    size, done = 0, 0
    with path.open("xb", buffering=0) as file:
        while done < len(left):  # many pieces in one call cost the kernel a third less than one by one
            written = os.writev(file.fileno(), left[done : done + _AT_ONCE])
            size += written
            while done < len(left) and written >= len(left[done]):
                written -= len(left[done])
                done += 1
            if written:
                left[done] = left[done][written:]
        os.fsync(file.fileno())
    return size


def _owner(name: str) -> str | None:
    """The writer that a dot-name carries, or None when it is foreign or not a leftover."""
    for prefix in (WRITING, DELETING):
        owner, _, rest = name.removeprefix(prefix).rpartition("-step-")
        if name.startswith(prefix) and owner and Lineage.parse_folder(f"step-{rest}") is not None:
            return owner
    return None


def _leftover(path: Path, owner: str, writer: str) -> str:
    """Why ``path`` may be removed, or nothing."""
    (group, _, incarnation), (my_group, _, mine) = owner.rpartition("."), writer.rpartition(".")
    if group == my_group and incarnation.isdigit() and mine.isdigit() and int(incarnation) < int(mine):
        return f"its writer {owner} is a predecessor of {writer}"
    return f"its writer {owner} is dead" if _unlocked(path) else ""


def _unlocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _changed(path: Path) -> float:
    """When something in the folder changed, unix seconds; 0 when it is gone, by another group's hand."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    """A link is removed and not followed."""
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
