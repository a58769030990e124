"""What becomes of the launcher's own events when its disk is full? It says so, once, and goes on keeping groups alive.

A group that cannot log must not go on, for its log is the proof of what it trained on; the launcher's log only tells
of restarts and notices. Used by run.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.run_folder import EventLog


class LauncherLog:
    """An event sink that bears a disk that takes nothing."""

    def __init__(self, path: Path, *, say: Callable[[str], None]) -> None:
        self._log = EventLog(path, group=None)
        self._say = say
        self._told = False

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event, or say that events are being lost."""
        try:
            self._log(event, **fields)
            self._told = False
        except OSError as error:
            if not self._told:
                self._say(f"warning: {error.strerror}: {error.filename}")
            self._told = True

    def close(self) -> None:
        self._log.close()
