"""What did each death of a group cost, and how did its successor come back?

A pure function over the event logs. Deaths are the launcher's ``exit`` events; the moment of a kill is that of the
``fault`` event that announced it, where there is one. Stall: from the kill, or from when
the survivor needs the lost group if later, to the start of its next attempt; redone work is not part of it.
Recovery: from the kill to the successor's first commit with a share of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from configs.run_folder import Event
from configs.words import Exit
from ops.history import Logs, time_of

ORDERLY = frozenset({int(Exit.DONE), int(Exit.DRAINED)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """One death of a group. Seconds; None where it never came to that."""

    group: str
    t: float
    code: int
    reason: str
    injected: bool
    stall_s: float | None
    recovery_s: float | None
    heal_sources: tuple[str, ...]
    heal_bytes: int
    heal_s: float | None

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def recoveries(logs: Logs) -> tuple[Recovery, ...]:
    """Every death of a group that the launcher saw and that was no orderly end, in time order."""
    exits = [e for e in logs.of("launcher", "exit") if e.get("group") and e.get("code") not in ORDERLY]
    found = []
    for event in exits:
        group = str(event["group"])
        kill = _announced(logs, group=group, before=time_of(event))
        t = time_of(kill) if kill else time_of(event)
        back = _first_share(logs, group=group, after=time_of(event))
        heals = [e for e in logs.of(group, "heal") if t <= time_of(e) and (back is None or time_of(e) <= back)]
        last = heals[-1] if heals and back is not None else {}
        found.append(
            Recovery(
                group=group,
                t=t,
                code=int(event.get("code", 0)),
                reason=str(event.get("reason", "")),
                injected=kill is not None,
                stall_s=stall_of(logs, group=group, t=t),
                recovery_s=None if back is None else back - t,
                heal_sources=tuple(last.get("sources") or ()),
                heal_bytes=int(last.get("bytes") or 0),
                heal_s=last.get("seconds"),
            )
        )
    return tuple(found)


def _announced(logs: Logs, *, group: str, before: float) -> Event | None:
    """The fault event that announced the death at ``before``: the last one since the group's death before that."""
    deaths = [time_of(e) for e in logs.of("launcher", "exit") if e.get("group") == group and time_of(e) < before]
    since = max(deaths, default=0.0)
    faults = [e for e in (*logs.of("launcher", "fault"), *logs.of(group, "fault")) if e.get("group") == group]
    inside = [e for e in faults if since < time_of(e) <= before and e.get("action") == "kill"]
    return max(inside, key=time_of) if inside else None


def _first_share(logs: Logs, *, group: str, after: float) -> float | None:
    """When the group first committed a share of its own after a moment; None when it ended before that."""
    ends = [time_of(e) for e in logs.of("launcher", "exit") if e.get("group") == group and time_of(e) > after]
    for event in logs.of(group, "commit"):
        if time_of(event) > after and (event.get("shares") or {}).get(group):
            return time_of(event) if time_of(event) < min(ends, default=float("inf")) else None
    return None


def stall_of(logs: Logs, *, group: str, t: float) -> float | None:
    """What a death of ``group`` at ``t`` cost the others: the longest wait of a survivor for its next attempt; with no
    survivor, that of the group itself."""
    seated = [e for e in logs.of(group, "quorum") if time_of(e) <= t]
    last = seated[-1] if seated else {}
    survivors = [g for g in (last.get("participants") or logs.groups) if g != group]
    waits = [wait for g in survivors or [group] if (wait := _wait_of(logs, group=g, t=t, lost=last)) is not None]
    return max(waits, default=None)


def _wait_of(logs: Logs, *, group: str, t: float, lost: Event) -> float | None:
    """Seconds for which the death at ``t`` kept ``group`` waiting: from the death, or from when it began to wait for
    the dead group (in a reduce that came to nothing, else in asking for the quorum) if that is later, to its next
    attempt without it. ``lost`` is the dead group's last quorum, whose id ends with it; a ``quorum`` event is written
    once the quorum is there."""
    after = [e for e in logs.of(group, "quorum") if time_of(e) > t and e.get("quorum_id") != lost.get("quorum_id")]
    if not after:
        return None
    begins = time_of(after[0])
    if group == lost.get("group"):
        return begins - t
    discards = [e for e in logs.of(group, "discard") if t < time_of(e) <= begins]
    waits = [time_of(e) - float(e["waited_s"]) for e in discards if "waited_s" in e]
    if not discards and "seconds" in after[0]:
        waits = [begins - float(after[0]["seconds"])]
    return begins - max(t, min(waits, default=t))
