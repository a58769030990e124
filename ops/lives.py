"""When did each incarnation of a group begin, get ready and end, and who says so?

A group's own log tells its beginning and its last words; of a death in the middle of a sentence the launcher or the
lighthouse tells, and if nobody does the last sign of life is its end. Where two incarnations overlap (one that slept
while its successor was started) the younger one has the time. Pure; used by goodput.py and recovery.py.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence

from configs.run_folder import Event
from configs.words import DepartureCause, Exit
from ops.history import Logs, time_of

ORDERLY = frozenset({int(Exit.DONE), int(Exit.DRAINED)})
SUPERSEDED = "superseded"
"""A burial with this reason was found out when the successor came: it tells no time."""


class Ending(enum.Enum):
    ORDERLY = "done or drained"
    FAILED = "dead"
    OPEN = "not told"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Life:
    """One incarnation. Unix seconds. ``ready`` is when it was built and rehearsed; None if it never was."""

    group: str
    incarnation: int
    began: float
    ready: float | None
    rehearsed_s: float
    end: float
    ending: Ending
    events: Sequence[Event]
    """Its own, in the order they were written."""


def lives_of(logs: Logs, group: str, *, until: float) -> tuple[Life, ...]:
    """The incarnations of one group in order, none of them longer than to the beginning of the next or ``until``."""
    own = _by_life(logs.of(group))
    for event in logs.of("lighthouse", "join"):
        if event.get("group") == group:
            own.setdefault((int(event.get("incarnation") or 0), 0), [])
    begins = {key: _began(events, _joined(logs, group, key[0])) for key, events in own.items()}
    found: list[Life] = []
    limit = until
    for key in sorted(begins, key=lambda k: begins[k], reverse=True):  # the younger one has the time
        began = min(begins[key], limit)
        found.append(_life(logs, group, key[0], own[key], began=began, limit=limit, last=not found))
        limit = began
    return tuple(reversed(found))


def _by_life(events: Sequence[Event]) -> dict[tuple[int, int], list[Event]]:
    """A group's events by (incarnation, how often it started): a lighthouse that lost its state counts from 1 again."""
    own: dict[tuple[int, int], list[Event]] = {}
    times: dict[int, int] = {}
    for event in events:
        n = int(event.get("incarnation") or 0)
        before = own.get((n, times.setdefault(n, 0)), [])
        if event.get("event") == "start" and any(e.get("event") in ("start", "exit") for e in before):
            times[n] += 1
        own.setdefault((n, times[n]), []).append(event)
    return own


def _joined(logs: Logs, group: str, incarnation: int) -> float | None:
    event = _told(logs.of("lighthouse", "join"), group, incarnation, after=0.0)
    return None if event is None else time_of(event)


def _began(events: Sequence[Event], joined: float | None) -> float:
    """The start tells; else the parts of it, else the first sign of life."""
    first = [time_of(e) for e in events] or ([] if joined is None else [joined])
    for start in (e for e in events if e.get("event") == "start"):
        built = time_of(start) - math.fsum((start.get("parts_s") or {}).values())
        return min([float(start.get("began_t", built)), *first])
    return min(first)


def _life(
    logs: Logs, group: str, incarnation: int, events: list[Event], *, began: float, limit: float, last: bool
) -> Life:
    start = next((e for e in events if e.get("event") == "start"), None)
    end, ending = _end(logs, group, incarnation, events, began=began)
    if end is None:
        spoken = max((time_of(e) for e in events), default=began)
        over = not last or any(time_of(e) > spoken for e in launches_of(logs, group))
        end, ending = (spoken, Ending.FAILED) if over else (limit, Ending.OPEN)
    return Life(
        group=group,
        incarnation=incarnation,
        began=began,
        ready=None if start is None else min(max(time_of(start), began), limit),
        rehearsed_s=0.0 if start is None else float((start.get("parts_s") or {}).get("rehearse", 0.0)),
        end=min(max(end, began), limit),
        ending=ending,
        events=events,
    )


def _end(
    logs: Logs, group: str, incarnation: int, events: Sequence[Event], *, began: float
) -> tuple[float | None, Ending]:
    """When an incarnation ended and how, by the best witness: itself, its launcher, the lighthouse."""
    spoken = max((time_of(e) for e in events), default=began)
    words = [e for e in events if e.get("event") == "exit"]
    seen = exit_of(logs, group, incarnation, after=began)
    if words:
        return time_of(words[0]), _ending(words[0].get("code"))
    if seen is not None:
        return max(_killed(logs, group, spoken, time_of(seen)), spoken), _ending(seen.get("code"))
    buried = departure_of(logs, group, incarnation, after=began)
    if buried is not None:
        left = buried.get("cause") == DepartureCause.LEFT
        return max(time_of(buried), spoken), Ending.ORDERLY if left else Ending.FAILED
    return None, Ending.OPEN


def _ending(code: object) -> Ending:
    return Ending.ORDERLY if code in ORDERLY else Ending.FAILED


def _killed(logs: Logs, group: str, after: float, before: float) -> float:
    """The moment of the kill that somebody announced between two moments; the later one where nobody did."""
    faults = [e for e in logs.of("launcher", "fault") if e.get("group") == group and e.get("action") == "kill"]
    return min((time_of(e) for e in faults if after <= time_of(e) <= before), default=before)


def launches_of(logs: Logs, group: str) -> list[Event]:
    """The events with which a launcher began that started this group: what it had started before is dead by then."""
    return [e for e in logs.of("launcher", "launch") if group in (e.get("groups") or ())]


def exit_of(logs: Logs, group: str, incarnation: int, *, after: float = 0.0) -> Event | None:
    """What the launcher told of the end of an incarnation that began at ``after``."""
    return _told(logs.of("launcher", "exit"), group, incarnation, after)


def departure_of(logs: Logs, group: str, incarnation: int, *, after: float = 0.0) -> Event | None:
    """What the lighthouse told of it, if that tells when it was."""
    own = _told(logs.of("lighthouse", "departure"), group, incarnation, after)
    return None if own is None or str(own.get("reason")).startswith(SUPERSEDED) else own


def _told(events: Sequence[Event], group: str, incarnation: int, after: float) -> Event | None:
    mine = (e for e in events if e.get("group") == group and int(e.get("incarnation") or 0) == incarnation)
    return next((e for e in mine if time_of(e) >= after), None)
