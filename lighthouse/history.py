"""What happened in the last hour? A bounded memory of the lighthouse's own events, for people who look at it later.

Fed with events only, as they are written to the log, so that a lighthouse that was restarted and reads its log back
knows what its predecessor knew. A discarded attempt has no event of its own here: it shows as a second quorum of the
same lineage. Pure: no clock, no socket, no file; the newest event is the time. Kept by chronicle.py, shown by live.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from configs.protocol import Kind
from configs.run_folder import Event
from configs.words import DepartureCause, Lineage

HOUR_S = 3600.0
PACE_S = 5.0
"""Steps that are committed faster than this are counted together."""
MOVES, MARKS, TOLD, PACES, LANES = 4000, 1000, 200, 800, 2000
"""The most that is kept of each kind, however much happens in an hour."""
TEXT = 300
"""Longest text that is kept, in characters: reasons come from outside."""
_NAMED = 6


class Lane(enum.StrEnum):
    """What a group is at a moment."""

    TRAINING = "training"
    HEALING = "healing"
    STARTING = "starting"
    GONE = "gone"
    UNSEEN = "unseen"
    """No lighthouse was there to see it."""


@dataclasses.dataclass(frozen=True)
class Move:
    """A group becomes something else at ``t`` (unix seconds). Numbered by ``n``, as all that follow."""

    n: int
    t: float
    group: str
    lane: Lane
    incarnation: int


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something happened at one moment, to one group or (None) to all that took part."""

    n: int
    t: float
    kind: str
    group: str | None
    text: str


@dataclasses.dataclass(frozen=True)
class Pace:
    """Committed since the pace before: so many steps, so many tokens (None where nobody said)."""

    n: int
    t: float
    steps: int
    tokens: int | None


@dataclasses.dataclass(frozen=True)
class Told:
    """An event in words, and why."""

    n: int
    t: float
    kind: str
    text: str
    why: str


@dataclasses.dataclass(frozen=True)
class _Quorum:
    lineage: str
    participants: tuple[str, ...]
    healing: frozenset[str]
    kind: str
    t: float


_Kept = TypeVar("_Kept", Move, Mark, Pace, Told)


class History:
    """The last hour. ``take`` every event in the order of the log; read with ``whole`` and ``since``."""

    def __init__(self) -> None:
        self.n = 0
        """Number of the newest item."""
        self.lanes: dict[str, Move] = {}
        """What each group is now."""
        self._base: dict[str, Move] = {}
        self._moves: deque[Move] = deque()
        self._marks: deque[Mark] = deque(maxlen=MARKS)
        self._paces: deque[Pace] = deque(maxlen=PACES)
        self._told: deque[Told] = deque(maxlen=TOLD)
        self._now = 0.0
        self._quorum: _Quorum | None = None
        self._lost: dict[str, str] = {}
        """Departures since the last quorum but one: why each of these groups is gone."""
        self._steps = 0
        self._tokens: int | None = None
        self._paced_tokens: int | None = None

    def take(self, event: Event) -> None:
        """Take one event in. What is damaged or unknown is passed over: logs come from disks, and a face must not
        harm the run."""
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            t = float(event["t"])
            self._act(event, t)
            self._now = max(self._now, t)
            self._forget()

    def whole(self) -> dict[str, Any]:
        """All of it as plain JSON values: how every lane began, then what ``since`` gives."""
        base = {group: [move.lane.value, move.incarnation] for group, move in self._base.items()}
        return {"base": base, **self.since(0)}

    def since(self, n: int) -> dict[str, Any]:
        """What was added after item ``n``, oldest first; lists that are empty are left out."""
        found = {
            "moves": _after(self._moves, n),
            "marks": _after(self._marks, n),
            "paces": _after(self._paces, n),
            "told": _after(self._told, n),
        }
        return {name: items for name, items in found.items() if items}

    # ---- one event ---------------------------------------------------------------------------------------------------

    def _act(self, event: Event, t: float) -> None:
        match event["event"]:
            case "quorum":
                self._take_quorum(event, t)
            case "confirmed":
                self._take_confirmed(event, t)
            case "join":
                group, incarnation = str(event["group"]), int(event["incarnation"])
                self._move(t, group, Lane.STARTING, incarnation)
                self._tell(t, "join", f"{group}.{incarnation} starts")
            case "departure":
                self._take_departure(event, t)
            case "refusal":
                self._tell(t, "refusal", f"{event['group']} was not let in", str(event["reason"]))
            case "rollback":
                self._tokens = self._paced_tokens = None
                self._run_mark(t, "rollback", f"rolled back from {event['from']} to {event['to']}", event)
            case "end":
                self._run_mark(t, "end", f"the run has ended at step {int(event['step'])}", event)
            case "lighthouse":
                self._take_lighthouse(event, t)

    def _take_quorum(self, event: Event, t: float) -> None:
        before = self._quorum
        now = _Quorum(
            lineage=str(event["lineage"]),
            participants=tuple(map(str, event["participants"])),
            healing=frozenset(map(str, event["healing"])),
            kind=str(event.get("kind", Kind.TRAIN)),
            t=t,
        )
        step, why = Lineage.parse(now.lineage).step, str(event.get("reason") or "")
        if before is not None and before.lineage == now.lineage and before.kind == Kind.TRAIN:
            text = f"an attempt at step {step + 1} was discarded"
            self._add(self._marks, Mark(self._next(), t, "discard", None, text))
            self._tell(t, "discard", text, self._why_discarded(before, now))
        for group in now.participants:
            lane = Lane.HEALING if group in now.healing else Lane.TRAINING
            self._move(t, group, lane, self._incarnation(group))
        self._tell_quorum(event, now, before, step=step, why=why)
        kept = set(self._lost) & set(before.participants if before else ())
        self._lost = {group: self._lost[group] for group in kept - set(now.participants)}
        self._quorum = now

    def _why_discarded(self, before: _Quorum, now: _Quorum) -> str:
        gone = [group for group in before.participants if group in self._lost or group not in now.participants]
        gone += sorted((now.healing - before.healing) & set(before.participants) - set(gone))
        if not gone:
            return "a participant moved on without its commit"
        return "; ".join(self._lost.get(group) or f"{group} was lost" for group in gone[:_NAMED])

    def _tell_quorum(self, event: Event, now: _Quorum, before: _Quorum | None, *, step: int, why: str) -> None:
        healed_before = before.healing if before else frozenset()
        back = sorted(healed_before & set(now.participants) - now.healing)
        heals = sorted(now.healing - healed_before)
        for group in back[:_NAMED]:
            self._tell(now.t, "back", f"{group} is back and trains, at step {step}")
        for group in heals[:_NAMED]:
            sources = [name for name in now.participants if name not in now.healing]
            self._tell(now.t, "heal", f"{group} heals from {_names(sources)}", why)
        if event.get("released"):
            self._tell(now.t, "drain", f"{event['released']} leaves: its drain is granted", why)
        if now.kind == Kind.CLOSING and (before is None or before.kind != Kind.CLOSING):
            self._tell(now.t, "end", f"the last step, {step}, is committed: the run closes", why)
        changed = before is None or set(now.participants) != set(before.participants)
        if changed and not heals:
            self._tell(now.t, "quorum", f"{_names(now.participants)} in the quorum, at step {step}", why)

    def _take_confirmed(self, event: Event, t: float) -> None:
        step, tokens = Lineage.parse(event["lineage"]).step, event.get("tokens")
        if isinstance(tokens, int):
            self._tokens = max(tokens, self._tokens or 0)
        if not self._paces:
            self._add(self._paces, Pace(self._next(), t, 0, 0))
            self._paced_tokens = 0 if step == 1 and self._tokens is None else self._tokens
            return
        self._steps += 1
        if t - self._paces[-1].t >= PACE_S:
            known = self._tokens is not None and self._paced_tokens is not None
            gained = max((self._tokens or 0) - (self._paced_tokens or 0), 0) if known else None
            self._add(self._paces, Pace(self._next(), t, self._steps, gained))
            self._steps, self._paced_tokens = 0, self._tokens

    def _take_departure(self, event: Event, t: float) -> None:
        group, incarnation = str(event["group"]), int(event["incarnation"])
        cause, reason = str(event["cause"]), str(event.get("reason") or "")
        text = f"{group}.{incarnation} {_CAUSES.get(cause, cause)}"
        now = self.lanes.get(group)
        if now is None or now.incarnation <= incarnation:
            self._move(t, group, Lane.GONE, incarnation)
        elif self._moves:  # its successor is here already; the lane still shows that there was a gap
            self._add(self._moves, Move(self._next(), t, group, Lane.GONE, incarnation))
        kind = "left" if cause == DepartureCause.LEFT else "departure"
        said = f"{text}: {reason}" if reason else text
        self._add(self._marks, Mark(self._next(), t, kind, group[:TEXT], said[:TEXT]))
        self._tell(t, kind, text, reason)
        if kind == "departure" and len(self._lost) < LANES:
            self._lost[group] = text

    def _take_lighthouse(self, event: Event, t: float) -> None:
        for group, move in tuple(self.lanes.items()):
            if move.lane not in (Lane.GONE, Lane.UNSEEN):
                self._move(self._now, group, Lane.UNSEEN, move.incarnation)
        self._run_mark(t, "lighthouse", f"the lighthouse has started, epoch {int(event['epoch'])}", event)

    # ---- keeping -----------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.n += 1
        return self.n

    def _incarnation(self, group: str) -> int:
        return self.lanes[group].incarnation if group in self.lanes else 0

    def _move(self, t: float, group: str, lane: Lane, incarnation: int) -> None:
        now = self.lanes.get(group)
        if now is not None and (now.lane, now.incarnation) == (lane, incarnation):
            return
        if now is None and (len(self.lanes) >= LANES or len(group) > TEXT):
            return
        self.lanes[group] = move = Move(self._next(), t, group, lane, incarnation)
        self._add(self._moves, move)

    def _run_mark(self, t: float, kind: str, text: str, event: Event) -> None:
        self._add(self._marks, Mark(self._next(), t, kind, None, text[:TEXT]))
        self._tell(t, kind, text, str(event.get("reason") or ""))

    def _tell(self, t: float, kind: str, text: str, why: str = "") -> None:
        self._add(self._told, Told(self._next(), t, kind, text[:TEXT], why[:TEXT]))

    @staticmethod
    def _add(kept: deque[_Kept], item: _Kept) -> None:
        kept.append(item)

    def _forget(self) -> None:
        """Drop what is older than the hour, or too much. A lane then begins with the last state that was dropped."""
        limit = self._now - HOUR_S
        while self._moves and (self._moves[0].t < limit or len(self._moves) > MOVES):
            move = self._moves.popleft()
            if move.group not in self._base or self._base[move.group].t <= move.t:
                self._base[move.group] = move
            if move is self.lanes.get(move.group) and move.lane is Lane.GONE:
                del self.lanes[move.group], self._base[move.group]  # gone for the whole hour
        for kept in (self._marks, self._paces, self._told):
            _drop_before(kept, limit)


_CAUSES: Mapping[str, str] = {
    DepartureCause.LEFT: "has left",
    DepartureCause.EXITED: "is gone: exited",
    DepartureCause.KILLED: "is gone: killed",
    DepartureCause.EXPIRED: "is gone: expired",
    DepartureCause.HUNG: "is gone: hung",
    DepartureCause.REFUSED: "was refused",
}


def _names(groups: Iterable[str]) -> str:
    names = list(groups)
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown or "nobody"


def _drop_before(kept: Any, limit: float) -> None:
    while kept and kept[0].t < limit:
        kept.popleft()


def _after(kept: deque[_Kept], n: int) -> list[list[Any]]:
    """The items behind item ``n``, as lists of their fields; looks at no more than these."""
    found: list[list[Any]] = []
    for item in reversed(kept):
        if item.n <= n:
            break
        found.append([round(value, 3) if type(value) is float else value for value in _fields(item)])
    found.reverse()
    return found


def _fields(item: Move | Mark | Pace | Told) -> list[Any]:
    return [getattr(item, field.name) for field in dataclasses.fields(item)]
