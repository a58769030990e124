"""How do the clocks of several hosts become one?

Every writer stamps its events with its own host's clock. A quorum is decided, by the lighthouse's clock, after each of
its participants asked and before it was told; so each one bounds how far the participant's clock is ahead:
``told - seconds - decided <= ahead <= told - decided``. A clock that all its bounds allow to be right is left alone;
another is set back by the middle of what they allow. The lighthouse's clock is the reference. Durations (``seconds``,
``phases``) come from monotonic clocks and need none of this. Pure; used by the report alone.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from configs.run_folder import Event
from ops.history import NOT_GROUPS, Logs, time_of

_MOMENTS = ("t", "began_t")
_SLACK_S = 0.002
"""Bounds closer than this contradict nothing: an event is written a little after what it tells."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """One host's clock against the lighthouse's. ``ahead_s`` was taken off its events."""

    host: str
    ahead_s: float
    steady: bool
    """Its bounds agree. Where they do not, it was set while the run went on, and ``ahead_s`` is a middle."""


def align(logs: Logs) -> tuple[Logs, tuple[Clock, ...]]:
    """The logs on the lighthouse's clock, and the clocks that differed from it."""
    hosts = {group: _hosts(logs.of(group)) for group in logs.groups}
    reference = next((e["host"] for e in logs.of("launcher", "lighthouse") if e.get("host")), None)
    decided = {e["attempt"]: time_of(e) for e in logs.of("lighthouse", "quorum") if e.get("attempt") is not None}
    bounds: dict[str, list[tuple[float, float]]] = {}
    for group in logs.groups:
        for event in logs.of(group, "quorum"):
            host = hosts[group].get(event.get("incarnation"))
            if host and host != reference and event.get("attempt") in decided:
                most = time_of(event) - decided[event["attempt"]]
                bounds.setdefault(host, []).append((most - float(event.get("seconds") or 0.0), most))
    clocks = tuple(clock for host, pairs in bounds.items() if (clock := _clock(host, pairs)).ahead_s)
    ahead = {clock.host: clock.ahead_s for clock in clocks}
    if not ahead:
        return logs, ()
    own = next((e["host"] for e in logs.of("launcher", "launch") if e.get("host")), reference)
    moved = {
        writer: [_moved(e, ahead.get(_host(writer, e, hosts, own), 0.0)) for e in events]
        for writer, events in logs.by_writer.items()
    }
    return dataclasses.replace(logs, by_writer=moved), clocks


def _hosts(events: Iterable[Event]) -> dict[object, str]:
    """The host of each incarnation that got so far as to say it."""
    return {e.get("incarnation"): str(e["host"]) for e in events if e.get("event") == "start" and e.get("host")}


def _host(writer: str, event: Event, hosts: Mapping[str, Mapping[object, str]], launcher: str | None) -> str:
    if writer == "launcher":
        return launcher or ""
    return "" if writer in NOT_GROUPS else hosts[writer].get(event.get("incarnation"), "")


def _clock(host: str, bounds: list[tuple[float, float]]) -> Clock:
    least, most = max(low for low, _ in bounds), min(high for _, high in bounds)
    steady = least <= most + _SLACK_S
    if steady:
        right = least - _SLACK_S <= 0.0 <= most + _SLACK_S
        return Clock(host=host, ahead_s=0.0 if right else (least + most) / 2, steady=True)
    return Clock(host=host, ahead_s=statistics.median((low + high) / 2 for low, high in bounds), steady=False)


def _moved(event: Event, ahead: float) -> Event:
    return event if not ahead else event | {key: event[key] - ahead for key in _MOMENTS if key in event}
