"""What must the lighthouse remember when it dies? The stored state, and the journal that keeps it on disk.

Rule: the journal is written, and on disk, before anybody hears of what it says. So a lighthouse that restarts, or a
run that is launched again on the same folder, never repeats an id, never seats the buried, never loses the history.
The file is JSON lines, each the fields that changed; a torn last line (a writer that died) is ignored. Called by the
gateway alone; decisions over the stored state are in decide.py.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from configs.protocol import Terms, replica_id
from configs.words import SCRATCH, Lineage, join_quorum_id


class Participant(NamedTuple):
    """One incarnation of a group."""

    group: str
    incarnation: int

    def __str__(self) -> str:
        return replica_id(self.group, self.incarnation)


class Vouched(NamedTuple):
    """What an incarnation vouched for, see configs.protocol.Voucher."""

    incarnation: int
    store: str
    golden: str


class Fence(NamedTuple):
    """A logged rollback to ``step`` at ``quorum_id``: whatever lies above the step and is older is invalid for ever."""

    step: int
    quorum_id: int


def fenced(lineage: Lineage, fences: tuple[Fence, ...]) -> bool:
    """Whether a logged rollback made this lineage invalid."""
    return any(lineage.step > fence.step and lineage.quorum_id < fence.quorum_id for fence in fences)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """The durable state. Names are those of the protocol model's gateway."""

    epoch: int = 0
    running: int = 0
    """The last number given within the epoch; attempts and quorum ids are drawn from it."""
    attempt: int = 0
    """The last grant's attempt."""
    granted: Lineage = SCRATCH
    """The current lineage of the last grant: the end of the confirmed chain."""
    confirmed_by: tuple[str, ...] = ()
    """The groups whose commit made ``granted``."""
    last_quorum_id: int = 0
    floors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Incarnations of a group below its floor are buried."""
    known: tuple[Participant, ...] = ()
    """The participants of the last grant."""
    fences: tuple[Fence, ...] = ()
    ended: Lineage | None = None
    incarnations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The highest incarnation of each group that was ever handed out."""
    lives: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The launcher's token of that incarnation."""
    managers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The newest incarnation of each group for which a torchft.Manager speaks, and nothing else."""
    terms: Terms | None = None
    vouched: Mapping[str, Vouched] = dataclasses.field(default_factory=dict)
    """What the newest incarnation of each group that vouched has brought."""

    def buried(self, who: Participant) -> bool:
        """Whether the incarnation is declared lost, for ever."""
        return who.incarnation < self.floors.get(who.group, 0)

    def bury(self, who: Participant) -> Stored:
        """The state in which the incarnation, and every one before it, is buried."""
        floor = max(self.floors.get(who.group, 0), who.incarnation + 1)
        return dataclasses.replace(self, floors={**self.floors, who.group: floor})

    def next_id(self) -> int:
        """The id that follows the last one given."""
        return join_quorum_id(epoch=self.epoch, running=self.running + 1)


class StateError(Exception):
    """The state file cannot be used; the text says which and why."""


class Journal:
    """The stored state, kept on disk where a path is given. One writer: the file is locked."""

    def __init__(self, path: Path | None, *, compact_after: int = 4096) -> None:
        """Read what is there. Raises StateError when the file is in use or is not a state file."""
        self.state = Stored()
        self._path = path
        self._compact_after = compact_after
        self._lines = 0
        self._fd = -1
        self._lock = -1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            self.state = read_state(path)
            self._rewrite(self.state)

    def commit(self, state: Stored) -> None:
        """Make ``state`` the stored one; on return it is on disk. Raises OSError, and then nothing has changed: what
        was written of it is cut off again, so that the file stays one that can be read."""
        changes = _changes(self.state, state)
        if self._path is not None and changes:
            if self._lines >= self._compact_after:
                self._rewrite(state)
            else:
                self._append(_line(changes))
        self.state = state

    def close(self) -> None:
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def _append(self, line: bytes) -> None:
        good = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, line)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, good)
            raise
        self._lines += 1

    def _rewrite(self, state: Stored) -> None:
        """One line instead of many; also ends a torn last line, which must not be appended to."""
        assert self._path is not None
        temporary = self._path.with_name(f".{self._path.name}.new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, _line(_changes(Stored(), state)))
            os.fsync(fd)
        except OSError:
            os.close(fd)
            temporary.unlink()
            raise
        temporary.replace(self._path)
        _sync_folder(self._path.parent)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._lines = fd, 1


def _locked(path: Path) -> int:
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StateError(f"state file {path} is in use by another lighthouse") from None
    return fd


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    """A full disk takes a part first, and says so only then."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _line(changes: dict[str, Any]) -> bytes:
    return json.dumps(changes, separators=(",", ":")).encode() + b"\n"


_MAPS = ("floors", "incarnations", "lives", "managers", "vouched")


def _changes(old: Stored, new: Stored) -> dict[str, Any]:
    """The fields of ``new`` that differ, as JSON; of maps only the entries that differ (entries never go away)."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(Stored):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if field.name in _MAPS:
            changes[field.name] = {key: value for key, value in after.items() if before.get(key) != value}
        else:
            changes[field.name] = dataclasses.asdict(after) if isinstance(after, Terms) else after
    return changes


def read_state(path: Path) -> Stored:
    """What a state file says; the initial state when there is none. Raises StateError when it is damaged."""
    if not path.exists():
        return Stored()
    merged: dict[str, Any] = {name: {} for name in _MAPS}
    *whole, _torn = path.read_bytes().split(b"\n")
    if not whole:  # it is replaced as a whole, so this is no crash: incarnations and burials would be forgotten
        raise StateError(f"state file {path} holds no whole line; move it away to begin anew")
    for number, line in enumerate(whole, 1):
        try:
            changes = json.loads(line)
            for name, value in changes.items():
                merged[name] = {**merged[name], **value} if name in _MAPS else value
        except (ValueError, TypeError, AttributeError) as error:
            raise StateError(f"state file {path}, line {number} is damaged ({error}); move the file away") from error
    try:
        return _parse(merged)
    except (TypeError, ValueError, KeyError) as error:
        raise StateError(f"state file {path} is not one of this lighthouse ({error}); move it away") from error


_STORED = TypeAdapter(Stored)


def _parse(raw: dict[str, Any]) -> Stored:
    fields = dict(raw)
    fields["granted"] = Lineage(*fields.get("granted", SCRATCH))
    fields["confirmed_by"] = tuple(fields.get("confirmed_by", ()))
    fields["known"] = tuple(Participant(*who) for who in fields.get("known", ()))
    fields["fences"] = tuple(Fence(*fence) for fence in fields.get("fences", ()))
    fields["vouched"] = {group: Vouched(*brought) for group, brought in fields.get("vouched", {}).items()}
    fields["ended"] = Lineage(*fields["ended"]) if fields.get("ended") else None
    fields["terms"] = Terms(**fields["terms"]) if fields.get("terms") else None
    return _STORED.validate_python(vars(Stored(**fields)))  # Stored() refuses unknown names, pydantic wrong types
