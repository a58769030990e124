"""How do the clocks of several hosts become one?

Every writer stamps its events with its own host's clock. A quorum is decided, by the lighthouse's clock, after each of
its participants asked and before it was told; so each one bounds how far the participant's clock is ahead:
``told - seconds - decided <= ahead <= told - decided``. A clock that all its bounds allow to be right is left alone;
another is set back by the middle of what they allow. The lighthouse's clock is the reference. Durations (``seconds``,
``phases``) come from monotonic clocks and need none of this. Pure; used by report and verdict.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping

from configs.run_folder import Event
from ops.history import Logs, time_of

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
    unsure_s: float = 0.0
    """How far from the truth ``ahead_s`` may be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocks:
    """Which clock stamped an event?"""

    by_host: Mapping[str, Clock]
    hosts: Mapping[str, Mapping[object, str]]
    """Of each group's incarnations that got so far as to say it."""
    reference: str | None
    """The lighthouse's host, where its launcher said it."""
    launcher: str | None

    def of(self, writer: str, event: Event) -> Clock:
        """The lighthouse's own is right; one that nothing bounds may be anything."""
        host = self.host(writer, event)
        if writer == "lighthouse" or host == self.reference or not self._known:
            return Clock(host=host, ahead_s=0.0, steady=True)
        return self.by_host.get(host) or Clock(host=host, ahead_s=0.0, steady=True, unsure_s=math.inf)

    def host(self, writer: str, event: Event) -> str:
        """Empty where nobody said it and it is not the only one."""
        said = self.launcher if writer == "launcher" else self.hosts.get(writer, {}).get(event.get("incarnation"))
        return said or (next(iter(self._known)) if len(self._known) == 1 else "")

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        told = {host for known in self.hosts.values() for host in known.values()}
        return frozenset(told | {host for host in (self.reference, self.launcher) if host})


def read_clocks(logs: Logs) -> Clocks:
    """The clocks of all hosts that a quorum bounds."""
    hosts = {group: _hosts(logs.of(group)) for group in logs.groups}
    reference = next((e["host"] for e in logs.of("launcher", "lighthouse") if e.get("host")), None)
    decided = {e["attempt"]: time_of(e) for e in logs.of("lighthouse", "quorum") if e.get("attempt") is not None}
    bounds: dict[str, list[tuple[float, float]]] = {}
    for group in logs.groups:
        for event in logs.of(group, "quorum"):
            host = hosts[group].get(event.get("incarnation"))
            if host and host != reference and event.get("attempt") in decided and event.get("seconds") is not None:
                most = time_of(event) - decided[event["attempt"]]
                bounds.setdefault(host, []).append((most - float(event["seconds"]), most))
    return Clocks(
        by_host={host: _clock(host, pairs) for host, pairs in bounds.items()},
        hosts=hosts,
        reference=reference,
        launcher=next((e["host"] for e in logs.of("launcher", "launch") if e.get("host")), reference),
    )


def align(logs: Logs) -> tuple[Logs, tuple[Clock, ...]]:
    """The logs on the lighthouse's clock, and the clocks that differed from it."""
    clocks = read_clocks(logs)
    differing = tuple(clock for clock in clocks.by_host.values() if clock.ahead_s)
    if not differing:
        return logs, ()
    moved = {w: [moved_by(e, clocks.of(w, e).ahead_s) for e in events] for w, events in logs.by_writer.items()}
    return dataclasses.replace(logs, by_writer=moved), differing


def _hosts(events: Iterable[Event]) -> dict[object, str]:
    """The host of each incarnation that got so far as to say it."""
    return {e.get("incarnation"): str(e["host"]) for e in events if e.get("event") == "start" and e.get("host")}


def _clock(host: str, bounds: list[tuple[float, float]]) -> Clock:
    least, most = max(low for low, _ in bounds), min(high for _, high in bounds)
    steady = least <= most + _SLACK_S
    if steady:
        right = least - _SLACK_S <= 0.0 <= most + _SLACK_S
        ahead = 0.0 if right else (least + most) / 2
        unsure = max(abs(most - ahead), abs(least - ahead)) + _SLACK_S
        return Clock(host=host, ahead_s=ahead, steady=True, unsure_s=unsure)
    ahead = statistics.median((low + high) / 2 for low, high in bounds)
    unsure = max(abs(bound - ahead) for pair in bounds for bound in pair) + _SLACK_S
    return Clock(host=host, ahead_s=ahead, steady=False, unsure_s=unsure)


def moved_by(event: Event, ahead: float) -> Event:
    """An event of a clock that is ahead, as the lighthouse's would have stamped it."""
    return event if not ahead else event | {key: event[key] - ahead for key in _MOMENTS if key in event}
