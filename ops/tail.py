"""What was appended to the event logs since I last looked?

Readers of a running job (live view, recovery clock, chaos driver, endpoints) see events as they are written. A torn
last line is kept back until its writer, or the successor that ends it, completes it.
"""

from __future__ import annotations

from pathlib import Path

from configs.run_folder import Event, parse_event


class Tail:
    """Follows one log. Not thread-safe."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._torn = b""
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> list[Event]:
        """The events completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(fresh)
        *lines, self._torn = (self._torn + fresh).split(b"\n")
        return [event for line in lines if (event := parse_event(line)) is not None]


class Tails:
    """Follows every log of an events folder, those that appear later too."""

    def __init__(self, folder: Path, *, from_end: bool = False) -> None:
        self._folder = folder
        self._tails = {path: Tail(path, from_end=from_end) for path in folder.glob("*.jsonl")}

    def read(self) -> list[tuple[str, Event]]:
        """(writer, event) of everything new, in time order."""
        for path in self._folder.glob("*.jsonl"):
            self._tails.setdefault(path, Tail(path))
        found = [(path.stem, event) for path, tail in self._tails.items() for event in tail.read()]
        return sorted(found, key=lambda pair: float(pair[1].get("t") or 0.0))
