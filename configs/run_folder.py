"""Where a run's files lie, and how its event logs are written and read.

An event log is JSON lines, one writer each, flushed at every event. A writer that dies leaves at most a torn last
line, which readers ignore and the next writer ends before it appends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
EventSink = Callable[..., object]
"""Called as ``sink(name, **fields)``."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The layout of ``job.dump_folder``."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def endpoints(self) -> Path:
        return self.events / "endpoints.json"

    @property
    def lighthouse_state(self) -> Path:
        return self.events / "lighthouse.state"

    @property
    def tokenizer(self) -> Path:
        """A copy of the tokenizer that made the run's tokens, as a Hugging Face folder."""
        return self.root / "tokenizer"

    @property
    def exports(self) -> Path:
        """What ``checkpoint.last_save_in_hf`` and ``checkpoint.last_save_model_only`` leave."""
        return self.root / "exports"

    @property
    def scenario(self) -> Path:
        """Of a chaos run: its scenario and the limits of it, for whoever judges the run later."""
        return self.root / "scenario.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    def event_log(self, writer: str) -> Path:
        """``writer`` is a group's name, ``lighthouse`` or ``launcher``."""
        return self.events / f"{writer}.jsonl"

    def rank_log(self, *, group: str, incarnation: int, rank: int) -> Path:
        return self.root / "logs" / group / str(incarnation) / f"rank{rank}.log"


class EventNotWritten(OSError):
    """Nobody could prove what a run did that goes on without its log."""


class EventLog:
    """Appends events to one file. Thread-safe: one ``write`` of a whole line to a file opened for append."""

    def __init__(
        self,
        path: Path,
        *,
        group: str | None,
        incarnation: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._group = group
        self._incarnation = incarnation
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._torn = bool(size) and os.pread(self._fd, 1, size - 1) != b"\n"
        """The last line is not whole: its writer died inside it, or the disk was full."""

    def __call__(self, event: str, **fields: Any) -> Event:
        """Write one event and return it; ``group`` and ``incarnation`` may speak of another than the log's own. Raises
        OSError, naming the file, when it could not be written whole."""
        head = {"t": self._clock(), "event": event, "group": self._group, "incarnation": self._incarnation}
        written = {**head, **fields}
        line = json.dumps(written, separators=(",", ":"), default=str)
        self._write(line.encode() + b"\n")
        return written

    def _write(self, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        try:
            size = os.write(self._fd, data)
            while size < len(data):  # a full disk takes a part first
                self._torn = True
                size += os.write(self._fd, data[size:])
        except OSError as error:
            raise EventNotWritten(
                error.errno, f"an event could not be written: {error.strerror}", str(self._path)
            ) from error
        self._torn = False

    def close(self) -> None:
        os.close(self._fd)


def read_events(path: Path) -> Iterator[Event]:
    """The events of one log, in order. Torn lines are passed over; a missing file is an empty log."""
    return (event for _, event in numbered_events(path))


def numbered_events(path: Path) -> Iterator[tuple[int, Event]]:
    """The same, each with the number of its line, from 1."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            if (event := parse_event(line)) is not None:
                yield number, event


def parse_event(line: bytes) -> Event | None:
    """One line of a log; None when it is torn, or no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("t"), int | float)
    return event if whole else None


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that readers see the old or the new text, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
