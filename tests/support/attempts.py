"""Lives of groups for the readers of event logs: starts, quorums and commits with their times, made by hand."""

from __future__ import annotations

from tests.support.logs import Event, commit, confirmed

STEP = {"checkpoint_stall": 0.02, "quorum": 0.08, "compute": 0.6, "reduce": 0.1, "vote": 0.05, "optimizer": 0.15}


def start(t: float, *, incarnation: int = 1, began: float, rehearse: float = 0.5, host: str = "a") -> Event:
    told = {"began_t": began, "parts_s": {"join": 0.1, "rehearse": rehearse}, "host": host}
    return {"t": t, "event": "start", "incarnation": incarnation, **told}


def quorum(t: float, *, attempt: int, seconds: float = 0.08, incarnation: int = 1, **fields) -> Event:
    told = {"attempt": attempt, "quorum_id": 1, "seconds": seconds, "incarnation": incarnation}
    return {"t": t, "event": "quorum", **told, **fields}


def step(s: int, *, t: float, incarnation: int = 1, attempt: int | None = None, **fields) -> Event:
    told = {"phases": STEP, "incarnation": incarnation, "attempt": s if attempt is None else attempt}
    return commit(s, {"g0": [2 * s], "g1": [2 * s + 1]}, t=t, **told) | fields


def discard(t: float, *, attempt: int, seconds: float, incarnation: int = 1) -> Event:
    told = {"phases": {"discarded": seconds}, "attempt": attempt, "reason": "peer_lost"}
    return {"t": t, "event": "discard", "incarnation": incarnation, **told}


def life(*, began: float, ready: float, steps: range, incarnation: int = 1) -> list[Event]:
    """A start, then a quorum and a commit each second."""
    found = [start(ready, began=began, incarnation=incarnation)]
    for n, s in enumerate(steps):
        found.append(quorum(ready + n + 0.1, attempt=s, incarnation=incarnation))
        found.append(step(s, t=ready + n + 1, incarnation=incarnation))
    return found


def leaving(t: float, *, incarnation: int = 1, code: int = 0) -> Event:
    return {"t": t, "event": "exit", "code": code, "reason": "done", "incarnation": incarnation}


def of(group: str, event: Event) -> Event:
    return {**event, "group": group}


CHAIN = [confirmed(s) | {"t": 104.0 + s} for s in range(1, 6)]
LAUNCH = {"t": 100.0, "event": "launch", "groups": ["g0", "g1"]}
