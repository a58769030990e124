"""What happened in a run, read from its event logs alone?

The confirmed history is the chain of lineages that the lighthouse's ``confirmed`` events name, cut back by its
``rollback`` events. A commit that no later quorum confirmed is not part of it, whatever a group wrote. Ledger, report
and the end of a launch all read the run through this file.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from configs.run_folder import Event, RunFolder, parse_event
from configs.words import SCRATCH, Exit, ExitRequest, Lineage
from ops.soundness import fault_of

YEAR_S = 366 * 86400.0
"""An event that is farther than this from the middle of a run's events has a damaged time."""
NOT_GROUPS = frozenset({"lighthouse", "launcher"})


@dataclasses.dataclass(frozen=True)
class Logs:
    """The event logs of one run, by writer; and the lines that could not be read, as ``events/g1.jsonl:210: why``."""

    by_writer: Mapping[str, Sequence[Event]]
    damaged: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(sorted((w for w in self.by_writer if w not in NOT_GROUPS), key=by_number))

    def of(self, writer: str, *names: str) -> list[Event]:
        """The events of one writer, of the given names (all of them when none is given)."""
        return [e for e in self.by_writer.get(writer, ()) if not names or e.get("event") in names]

    def of_groups(self, *names: str) -> list[tuple[str, Event]]:
        """(group, event) of all groups, in time order."""
        found = [(group, event) for group in self.groups for event in self.of(group, *names)]
        return sorted(found, key=lambda pair: time_of(pair[1]))


class Indexed(Logs):
    """Logs that no longer grow, sorted by name once: for readers who ask many times. Lists are shared: do not change
    them."""

    @classmethod
    def of_logs(cls, logs: Logs) -> Indexed:
        """The same logs, indexed; nothing to do where they are."""
        return logs if isinstance(logs, Indexed) else cls(logs.by_writer, logs.damaged)

    @functools.cached_property
    def _named(self) -> dict[tuple[str, str], list[Event]]:
        named: dict[tuple[str, str], list[Event]] = {}
        for writer, events in self.by_writer.items():
            for event in events:
                named.setdefault((writer, str(event.get("event"))), []).append(event)
        return named

    @functools.cached_property
    def _sorted(self) -> dict[tuple[str, str], tuple[list[float], list[Event]]]:
        return {}

    def of(self, writer: str, *names: str) -> list[Event]:
        if len(names) == 1:
            return self._named.get((writer, names[0]), [])
        return super().of(writer, *names)

    def after(self, writer: str, name: str, t: float) -> Iterator[Event]:
        """The events of one name after a moment, in time order."""
        times, events = self._in_order(writer, name)
        return itertools.islice(events, bisect.bisect_right(times, t), None)

    def last(self, writer: str, name: str, t: float) -> Event | None:
        """The newest event of one name that is not after a moment."""
        times, events = self._in_order(writer, name)
        place = bisect.bisect_right(times, t)
        return events[place - 1] if place else None

    def _in_order(self, writer: str, name: str) -> tuple[list[float], list[Event]]:
        if (writer, name) not in self._sorted:
            events = sorted(self.of(writer, name), key=time_of)
            self._sorted[writer, name] = [time_of(e) for e in events], events
        return self._sorted[writer, name]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is wrong with a log, and the event that shows it (None where it is one that is missing)."""

    event: Event | None
    why: str
    about: str = ""
    """The field that groups disagree about, where it is that."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """The confirmed history: ``lineages`` in step order; what was confirmed once and then rolled back; and where the
    log contradicts itself."""

    lineages: tuple[Lineage, ...] = ()
    rolled_back: tuple[Lineage, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def contradictions(self) -> tuple[str, ...]:
        return tuple(finding.why for finding in self.findings)

    @property
    def end(self) -> Lineage:
        return self.lineages[-1] if self.lineages else SCRATCH


def by_number(group: str) -> tuple[str, int]:
    """Sorts g2 before g10."""
    head = group.rstrip("0123456789")
    return head, int(group[len(head) :] or -1)


def time_of(event: Event) -> float:
    """Unix seconds of an event; 0 where a writer left none."""
    t = event.get("t")
    return float(t) if isinstance(t, int | float) else 0.0


def lineage_of(event: Event, key: str = "lineage") -> Lineage | None:
    """The lineage an event names, or None where it names none that can be read."""
    try:
        return Lineage.parse(str(event.get(key)))
    except ValueError:
        return None


def read_logs(run: Path) -> Logs:
    """All event logs of a run folder. Raises ExitRequest(2) when there are none."""
    folder = RunFolder(run)
    paths = sorted(folder.events.glob("*.jsonl")) if folder.events.is_dir() else []
    if not paths:
        raise ExitRequest(Exit.BAD_CONFIG, f"{run}: no event logs in {folder.events} (is this a run folder?)")
    by_writer: dict[str, tuple[Event, ...]] = {}
    damaged: list[str] = []
    for path in paths:
        by_writer[path.stem], bad = _read_log(path)
        damaged.extend(f"{folder.events.name}/{path.name}:{why}" for why in bad)
    every = sorted(time_of(e) for events in by_writer.values() for e in events)
    middle = every[len(every) // 2] if every else 0.0
    for writer, events in by_writer.items():
        strays = [e for e in events if abs(time_of(e) - middle) > YEAR_S]
        damaged.extend(
            f"{folder.events.name}/{writer}.jsonl: t = {time_of(e):g} is far from the others" for e in strays
        )
        by_writer[writer] = tuple(e for e in events if e not in strays) if strays else events
    return Logs(by_writer, tuple(damaged))


def _read_log(path: Path) -> tuple[tuple[Event, ...], list[str]]:
    """The events of one log, and each line that is none: its number and the reason."""
    found: list[Event] = []
    bad: list[str] = []
    with path.open("rb") as lines:
        for place, line in enumerate(lines, start=1):
            event = parse_event(line)
            if not line.endswith(b"\n"):
                bad.append(f"{place}: the last line is not whole")
            elif event is not None and (why := fault_of(event)):
                bad.append(f"{place}: {why}")
            elif event is not None:
                found.append(event)
            elif line.strip():
                bad.append(f"{place}: no event")
    return tuple(found), bad


def confirmed_chain(lighthouse: Iterable[Event]) -> Chain:
    """The chain that ``confirmed`` events name, cut back by ``rollback`` events."""
    chain: list[Lineage] = []
    cut: list[Lineage] = []
    findings: list[Finding] = []
    for event in lighthouse:
        lineage = lineage_of(event, "to" if "to" in event else "lineage")
        match event.get("event"):
            case "rollback" if lineage is not None:
                kept = [known for known in chain if known.step <= lineage.step]
                if lineage != SCRATCH and (not kept or kept[-1] != lineage):
                    findings.append(Finding(event, f"rollback to {lineage}, which was never confirmed"))
                cut.extend(chain[len(kept) :])
                chain = kept
            case "confirmed" if lineage is not None and lineage.step > 0 and lineage not in chain[-1:]:
                before = chain[-1].step if chain else 0
                if lineage.step <= before:
                    why = f"{lineage} confirmed after {chain[-1]} without a rollback between them"
                    findings.append(Finding(event, why))
                    continue
                if lineage.step > before + 1:
                    findings.append(Finding(event, f"{lineage} confirmed, but no step between {before} and it"))
                chain.append(lineage)
    return Chain(tuple(chain), tuple(cut), tuple(findings))


def commits_by_lineage(logs: Logs) -> dict[Lineage, list[tuple[str, Event]]]:
    """(group, commit record) of every lineage that any group wrote."""
    found: dict[Lineage, list[tuple[str, Event]]] = {}
    for group, event in logs.of_groups("commit"):
        lineage = lineage_of(event)
        if lineage is not None:
            found.setdefault(lineage, []).append((group, event))
    return found


def confirmed_commits(logs: Logs) -> list[Event]:
    """One commit record of each confirmed step that has one, in step order."""
    records = commits_by_lineage(logs)
    chain = confirmed_chain(logs.of("lighthouse"))
    return [records[lineage][0][1] for lineage in chain.lineages if lineage in records]


def digests(logs: Logs) -> tuple[str | None, bool | None]:
    """The digest of the last confirmed state (None where none was asked for), and whether the groups agree on the
    digest of every confirmed step (None where nothing could be compared)."""
    records = commits_by_lineage(logs)
    chain = confirmed_chain(logs.of("lighthouse"))
    last: str | None = None
    agree: bool | None = None
    for lineage in chain.lineages:
        seen = {str(event["digest"]) for _, event in records.get(lineage, ()) if event.get("digest")}
        last = min(seen) if len(seen) == 1 else None
        if seen:
            agree = len(seen) == 1 and agree is not False
    return last, agree
