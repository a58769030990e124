"""What did each death of a group cost, and how did its successor come back?

A pure function over the event logs. Deaths are the launcher's ``exit`` events and, of groups that nobody here launched,
what their own last words or the lighthouse tell; the moment of a kill is that of the ``fault`` event that announced it,
where there is one. A death that nobody witnessed (the whole run was killed) is in the goodput ledger alone.
Stall: from the kill, or from when the survivor needs the lost group if later, to the start of its next attempt; redone
work is not part of it; where nobody survived there is none. Recovery: from the kill to the successor's first commit
with a share of its own; its parts follow one another without a gap. Both end with the launch that the death was in:
what comes after the pause between two launches is no recovery. A code that ends the whole run is no death.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from configs.run_folder import Event
from configs.words import Exit
from ops.history import Indexed, Logs, time_of
from ops.lives import ORDERLY, Ending, Life, departure_of, exit_of, launches_of, lives_of

ENDS_RUN = frozenset({int(Exit.BAD_CONFIG), int(Exit.QUORUM_LOST), int(Exit.NONFINITE), int(Exit.CHECKPOINT), *ORDERLY})
"""Codes of a group that gave up, or that was done: there is nobody to come back."""
PARTS = ("detection", "burial", "restart", "join", "heal", "first_share")
"""Of a recovery, in order. It ends when: somebody here saw the death; the lighthouse buried the group; the successor's
process began; it was built and rehearsed; it held the current state; it committed a share of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """One death of a group. Seconds; None where it never came to that, or nobody tells it (``code``)."""

    group: str
    incarnation: int | None
    t: float
    code: int | None
    reason: str
    injected: bool
    stall_s: float | None
    recovery_s: float | None
    parts_s: Mapping[str, float]
    """The parts that it came to, by name; together they are the recovery."""
    heal_sources: tuple[str, ...]
    heal_bytes: int
    heal_s: float | None

    @property
    def killed(self) -> bool:
        """By a signal, as far as anybody can tell."""
        return self.code is None or self.code < 0

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Death:
    """``seen``: when it was told."""

    group: str
    incarnation: int | None
    seen: float
    code: int | None
    reason: str


def recoveries(logs: Logs) -> tuple[Recovery, ...]:
    """Every death of a group that was no orderly end, in time order."""
    logs = Indexed.of_logs(logs)
    last = max((time_of(e) for events in logs.by_writer.values() for e in events), default=0.0)
    lives = {group: lives_of(logs, group, until=last) for group in logs.groups}
    deaths = sorted([*_launched(logs), *_apart(logs, lives)], key=lambda death: death.seen)
    return tuple(_recovery(logs, death, deaths, lives.get(death.group, ())) for death in deaths)


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    """``{"p50", "p95", "max", "n"}``; None of nothing."""
    found = sorted(values)
    if not found:
        return None
    cuts = statistics.quantiles(found, n=20, method="inclusive") if len(found) > 1 else found * 19
    return {"p50": statistics.median(found), "p95": cuts[18], "max": found[-1], "n": len(found)}


def summary(found: Iterable[Recovery]) -> dict[str, dict[str, float]]:
    """The quantiles of the survivors' stall, of the recovery and of each of its parts, as far as there are any."""
    deaths = list(found)
    columns = {"stall": [r.stall_s for r in deaths], "recovery": [r.recovery_s for r in deaths]}
    columns |= {part: [r.parts_s.get(part) for r in deaths] for part in PARTS}
    told = {name: quantiles(v for v in values if v is not None) for name, values in columns.items()}
    return {name: spread for name, spread in told.items() if spread is not None}


def _launched(logs: Logs) -> list[_Death]:
    """The deaths that a launcher saw."""
    exits = [e for e in logs.of("launcher", "exit") if e.get("group") and e.get("code") not in ENDS_RUN]
    return [
        _Death(
            group=str(e["group"]),
            incarnation=e.get("incarnation"),
            seen=time_of(e),
            code=int(e.get("code", 0)),
            reason=str(e.get("reason", "")),
        )
        for e in exits
    ]


def _apart(logs: Logs, lives: Mapping[str, Iterable[Life]]) -> list[_Death]:
    """The deaths that no launcher saw, but the group itself or the lighthouse."""
    found = []
    for life in (life for of_group in lives.values() for life in of_group if life.ending is Ending.FAILED):
        if exit_of(logs, life.group, life.incarnation, after=life.began) is not None:
            continue
        words = next((e for e in life.events if e.get("event") == "exit"), None)
        buried = departure_of(logs, life.group, life.incarnation, after=life.began)
        if words is None and buried is None:
            continue
        code = None if words is None else words.get("code")
        if code in ENDS_RUN:
            continue
        reason = str((words or buried or {}).get("reason", ""))
        found.append(_Death(group=life.group, incarnation=life.incarnation, seen=life.end, code=code, reason=reason))
    return found


def _recovery(logs: Indexed, death: _Death, deaths: Iterable[_Death], lives: Iterable[Life]) -> Recovery:
    group = death.group
    before = max((d.seen for d in deaths if d.group == group and d.seen < death.seen), default=0.0)
    kill = _announced(logs, group=group, since=before, until=death.seen)
    t = time_of(kill) if kill else death.seen
    next_death = min((d.seen for d in deaths if d.group == group and d.seen > death.seen), default=float("inf"))
    ends = [time_of(e) for e in logs.of("launcher", "exit") if e.get("group") == group and time_of(e) > death.seen]
    over = _launch_after(logs, group, death.seen)
    back = _first_share(logs, group=group, after=death.seen, until=min([next_death, over, *ends]))
    heals = [e for e in logs.of(group, "heal") if t <= time_of(e) and (back is None or time_of(e) <= back)]
    last = heals[-1] if heals and back is not None else {}
    successor = next((life for life in lives if t < life.began < over), None)
    return Recovery(
        group=group,
        incarnation=death.incarnation,
        t=t,
        code=death.code,
        reason=death.reason,
        injected=kill is not None,
        stall_s=stall_of(logs, group=group, t=t),
        recovery_s=None if back is None else back - t,
        parts_s=_parts(
            logs, death, t=t, over=over, successor=successor, healed=time_of(last) if last else None, back=back
        ),
        heal_sources=tuple(last.get("sources") or ()),
        heal_bytes=int(last.get("bytes") or 0),
        heal_s=last.get("seconds"),
    )


def _launch_after(logs: Logs, group: str, t: float) -> float:
    """When the next launch of the group began: what it was in at ``t`` is over by then."""
    return min((time_of(e) for e in launches_of(logs, group) if time_of(e) > t), default=float("inf"))


def _parts(
    logs: Logs,
    death: _Death,
    *,
    t: float,
    over: float,
    successor: Life | None,
    healed: float | None,
    back: float | None,
) -> dict[str, float]:
    """The parts up to where it came, at most to when its launch was ``over``. A moment that nobody tells is that of the
    part before, which then takes both."""
    departure = None if death.incarnation is None else departure_of(logs, death.group, death.incarnation, after=t - 1.0)
    buried = None if departure is None or time_of(departure) >= over else time_of(departure)
    seen = death.seen if buried is None else min(death.seen, buried)
    came = successor is not None and (back is None or successor.began <= back)
    moments = {
        "detection": seen,
        "burial": buried,
        "restart": successor.began if successor is not None and came else None,
        "join": successor.ready if successor is not None and came else None,
        "heal": healed,
        "first_share": back,
    }
    reached = [name for name in PARTS if moments[name] is not None]
    parts: dict[str, float] = {}
    at = t
    for name in PARTS[: PARTS.index(reached[-1]) + 1]:
        moment = moments[name]
        until = at if moment is None else max(at, moment if back is None else min(moment, back))
        parts[name], at = until - at, until
    return parts


def _announced(logs: Logs, *, group: str, since: float, until: float) -> Event | None:
    """The fault event that announced the death at ``until``: the last one since the group's death before that."""
    faults = [e for e in (*logs.of("launcher", "fault"), *logs.of(group, "fault")) if e.get("group") == group]
    inside = [e for e in faults if since < time_of(e) <= until and e.get("action") == "kill"]
    return max(inside, key=time_of) if inside else None


def _first_share(logs: Indexed, *, group: str, after: float, until: float) -> float | None:
    """When the group first committed a share of its own after a moment; None when it ended before that."""
    for event in logs.after(group, "commit", after):
        if (event.get("shares") or {}).get(group):
            return time_of(event) if time_of(event) < until else None
    return None


def stall_of(logs: Logs, *, group: str, t: float) -> float | None:
    """What a death of ``group`` at ``t`` cost the others: the longest wait of a survivor for its next attempt. None
    where nobody survived: an attempt of somebody's successor ends no wait."""
    logs = Indexed.of_logs(logs)
    last = logs.last(group, "quorum", t) or {}
    others = [g for g in (last.get("participants") or logs.groups) if g != group]
    waits = [wait for g in others if (wait := _wait_of(logs, group=g, t=t, lost=last)) is not None]
    return max(waits, default=None)


def _wait_of(logs: Indexed, *, group: str, t: float, lost: Event) -> float | None:
    """Seconds for which the death at ``t`` kept ``group`` waiting: from the death, or from when it began to wait for
    the dead group (in a reduce that came to nothing, else in asking for the quorum) if that is later, to its next
    attempt without it. ``lost`` is the dead group's last quorum, whose id ends with it; a ``quorum`` event is written
    once the quorum is there."""
    later = logs.after(group, "quorum", t)
    first = next((e for e in later if e.get("quorum_id") != lost.get("quorum_id")), None)
    before = logs.last(group, "quorum", t)
    if first is None or (before is not None and before.get("incarnation") != first.get("incarnation")):
        return None  # it did not survive either
    begins = time_of(first)
    if begins >= _launch_after(logs, group, t):
        return None
    discards = list(itertools.takewhile(lambda e: time_of(e) <= begins, logs.after(group, "discard", t)))
    waits = [time_of(e) - float(e["waited_s"]) for e in discards if "waited_s" in e]
    if not discards and "seconds" in first:
        waits = [begins - float(first["seconds"])]
    return begins - max(t, min(waits, default=t))
