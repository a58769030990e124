"""What is a run to its judge? Its event logs, each event with the file and the line where it stands.

A violation names one line, so that whoever doubts a verdict can look. Every invariant is a pure function from a story
to violations; ``ops.verdict.judge`` puts them together.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from configs.load import ConfigError, parse_text
from configs.run_folder import Event, RunFolder
from configs.words import Exit, ExitRequest, Lineage
from ops.history import NOT_GROUPS, Chain, Finding, Logs, by_number, confirmed_chain, lineage_of, time_of
from ops.verdict.reading import read_lines, why_unusable
from trainer.schedule import Schedule, schedule_of

SHOWN = 400
"""Characters of an event that are quoted."""


class Invariant(enum.StrEnum):
    """What is tested for ever."""

    READABLE = "readable"
    EXACTLY_ONCE = "exactly_once"
    ONE_HISTORY = "one_history"
    ONE_DIGEST = "one_digest"
    CLOCKS = "clocks"
    QUORUM_IDS = "quorum_ids"
    SEATED_OR_BURIED = "seated_or_buried"
    BURIED = "buried"
    PUBLISHED = "published"
    RESUME = "resume"
    EXITS = "exits"
    TOLD_ALIKE = "told_alike"
    LIMITS = "limits"


@dataclasses.dataclass(frozen=True)
class Line:
    """One event, and where it stands."""

    writer: str
    number: int
    event: Event
    written: Event | None = None
    """The event as it is written, where its ``t`` has been put on another clock."""
    unsure_s: float = 0.0
    """How far from the truth ``t`` may be on the lighthouse's clock."""

    @property
    def quoted(self) -> Event:
        """What stands in the file."""
        return self.event if self.written is None else self.written

    @property
    def where(self) -> str:
        return f"events/{self.writer}.jsonl:{self.number}"

    @property
    def t(self) -> float:
        return time_of(self.event)

    @property
    def group(self) -> str:
        """The group spoken of."""
        return str(self.event.get("group"))

    @property
    def incarnation(self) -> int:
        """The incarnation spoken of; 0 where none is."""
        number = self.event.get("incarnation")
        return number if isinstance(number, int) else 0

    @property
    def lineage(self) -> Lineage | None:
        return lineage_of(self.event)


@dataclasses.dataclass(frozen=True)
class Violation:
    """A promise that was not kept. ``line`` is None where what is wrong is that there is no line."""

    invariant: Invariant
    why: str
    line: Line | None = None

    def as_json(self) -> dict[str, Any]:
        where = "events" if self.line is None else self.line.where
        event = None if self.line is None else self.line.quoted
        return {"invariant": self.invariant.value, "where": where, "why": self.why, "event": event}

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.invariant}: {self.why}"
        quoted = json.dumps(self.line.quoted, default=str)
        quoted = quoted if len(quoted) <= SHOWN else f"{quoted[:SHOWN]}..."
        return f"{self.invariant}: {self.line.where}: {self.why}\n    {quoted}"


@dataclasses.dataclass(frozen=True)
class Story:
    """The logs of one run, but for the lines that are damaged; those are violations as they stand."""

    by_writer: Mapping[str, tuple[Line, ...]]
    damaged: tuple[Violation, ...] = ()
    schedule: Schedule | None = None
    """Of the run folder's config, where it has one that can be read."""

    @functools.cached_property
    def groups(self) -> tuple[str, ...]:
        return tuple(sorted((w for w in self.by_writer if w not in NOT_GROUPS), key=by_number))

    @functools.cached_property
    def logs(self) -> Logs:
        """The same for readers that need no lines; the events are the same objects."""
        return Logs({writer: [line.event for line in lines] for writer, lines in self.by_writer.items()})

    @functools.cached_property
    def chain(self) -> Chain:
        """The confirmed history."""
        return confirmed_chain(self.logs.of("lighthouse"))

    @functools.cached_property
    def commits(self) -> Mapping[Lineage, tuple[Line, ...]]:
        """The commit records of every lineage, in time order."""
        found: dict[Lineage, list[Line]] = {}
        for line in self.of_groups("commit"):
            if line.lineage is not None:
                found.setdefault(line.lineage, []).append(line)
        return {lineage: tuple(lines) for lineage, lines in found.items()}

    @functools.cached_property
    def _by_identity(self) -> Mapping[int, Line]:
        return {id(line.event): line for lines in self.by_writer.values() for line in lines}

    def of(self, writer: str, *names: str) -> list[Line]:
        """The lines of one writer, of the given names (all of them when none is given), as they stand."""
        return [line for line in self.by_writer.get(writer, ()) if not names or line.event.get("event") in names]

    def of_groups(self, *names: str) -> list[Line]:
        """The lines of all groups, in time order."""
        return sorted((line for group in self.groups for line in self.of(group, *names)), key=lambda line: line.t)

    def line_of(self, event: Event | None) -> Line | None:
        """Where an event of ``logs`` stands."""
        return None if event is None else self._by_identity.get(id(event))

    def violation(self, invariant: Invariant, finding: Finding) -> Violation:
        """What another reader of the logs has found."""
        return Violation(invariant, finding.why, self.line_of(finding.event))


def story_of(logs: Mapping[str, Iterable[Event]]) -> Story:
    """A story from events in memory; the first stands in line 1."""
    return _told({w: [(n, event, why_unusable(event)) for n, event in enumerate(said, 1)] for w, said in logs.items()})


def read_story(run: Path) -> Story:
    """All event logs of a run folder. Raises ExitRequest(2) when there are none."""
    folder = RunFolder(run)
    paths = sorted(folder.events.glob("*.jsonl")) if folder.events.is_dir() else []
    if not paths:
        raise ExitRequest(Exit.BAD_CONFIG, f"{run}: no event logs in {folder.events} (is this a run folder?)")
    logs = {}
    for path in paths:
        with path.open("rb") as lines:
            logs[path.stem] = list(read_lines(lines))
    return dataclasses.replace(_told(logs), schedule=_schedule(folder))


def _schedule(folder: RunFolder) -> Schedule | None:
    if not folder.config.exists():
        return None
    try:
        return schedule_of(parse_text(folder.config.read_text(errors="replace"), where=str(folder.config)))
    except ConfigError:
        return None


def _told(logs: Mapping[str, Iterable[tuple[int, Event, str | None]]]) -> Story:
    """A story of numbered events, and of what is wrong with each."""
    by_writer: dict[str, tuple[Line, ...]] = {}
    damaged: list[Violation] = []
    for writer, said in logs.items():
        lines = [(Line(writer, number, event), why) for number, event, why in said]
        by_writer[writer] = tuple(line for line, why in lines if why is None)
        damaged += [Violation(Invariant.READABLE, why, line) for line, why in lines if why is not None]
    return Story(by_writer, tuple(damaged))
