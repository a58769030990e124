"""Where do finished checkpoints go? Into a folder by one rename (here), or into an object store (``objects.py``).

The writer makes every checkpoint in a local folder under a dot-name; a ``Place`` makes it one that readers take, and
lets older ones go. Rank 0's worker thread only.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from checkpointing import folder as folders
from checkpointing.errors import BadCheckpoint
from checkpointing.manifest import check_sizes, read_manifest
from checkpointing.retention import fenced_off, retain
from configs.words import Lineage

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which ones stay."""

    latest_k: int
    """0: all."""
    every: int | None = None
    """Steps that this divides stay for ever."""


class Place(Protocol):
    """Where readers look."""

    def holds(self, lineage: Lineage) -> bool:
        """It is there, whole by manifest and sizes."""
        ...

    def publish(self, unfinished: folders.Unfinished) -> None:
        """Make it a checkpoint, durably. Raises OSError; the unfinished one is then still the caller's."""
        ...

    def let_go(self, durable: Lineage, keep: Keep) -> None:
        """``durable`` is safe: remove what need not stay, set aside what was rolled back. Raises OSError."""
        ...

    def cut_off(self, fences: Sequence[Lineage]) -> list[tuple[str, str]]:
        """Set aside what rollbacks cut off: (name, reason) of each. Raises OSError."""
        ...


class FolderPlace:
    """A folder of a POSIX file system."""

    def __init__(self, folder: Path, *, writer: str, secret: bytes | None) -> None:
        self._folder = folder
        self._writer = writer
        self._secret = secret

    def holds(self, lineage: Lineage) -> bool:
        """It is there, whole by manifest and sizes, and nobody has noted damage."""
        path = self._folder / lineage.folder
        try:
            check_sizes(path, read_manifest(path, secret=self._secret))
        except BadCheckpoint:
            return False
        return folders.damage(path) is None

    def publish(self, unfinished: folders.Unfinished) -> None:
        """One rename, then the folder is synced. Raises OSError."""
        unfinished.publish()

    def let_go(self, durable: Lineage, keep: Keep) -> None:
        """Raises OSError; what is left is tried again at the next save."""
        there = folders.published(self._folder)
        decided = retain(there, durable=durable, keep_latest_k=keep.latest_k, keep_every=keep.every)
        for lineage, reason in decided.set_aside.items():
            _log.warning("set aside %s: %s", lineage.folder, reason)
            folders.set_aside(there[lineage], reason)
        for lineage in decided.delete:
            folders.delete(there[lineage], writer=self._writer)
        folders.limit_aside(self._folder, keep=keep.latest_k)

    def cut_off(self, fences: Sequence[Lineage]) -> list[tuple[str, str]]:
        """Where another group was faster nothing is left to do. Raises OSError."""
        there = folders.candidates(self._folder)
        doomed = fenced_off(there, fences)
        return [(it.folder, why) for it, why in doomed.items() if folders.set_aside(there[it], why) is not None]
