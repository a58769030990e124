"""How does a benchmark follow a running job? Through its event logs, as a user's tools do.

``Watch.until`` waits for something to be said in them, and fails with the end of the job's output when the job ends
instead or it takes too long: a benchmark never waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from configs.run_folder import Event
from ops.history import Logs, time_of
from ops.tail import Tails

LOOK_S = 0.01
LIMIT_S = 120.0

Found = TypeVar("Found")


class NotMeasured(Exception):
    """What was to be measured did not happen; the reason is for people."""


class Watch:
    """The event logs of one run folder, as far as they are written."""

    def __init__(self, events: Path, *, failed: Callable[[], str | None]) -> None:
        """``failed`` says why the job cannot go on, if so."""
        self._tails = Tails(events)
        self._failed = failed
        self._by_writer: dict[str, list[Event]] = {}

    @property
    def logs(self) -> Logs:
        """What has been read so far."""
        return Logs(self._by_writer)

    def look(self) -> Logs:
        """Read what is new."""
        for writer, event in self._tails.read():
            self._by_writer.setdefault(writer, []).append(event)
        return self.logs

    def until(self, what: str, seen: Callable[[Logs], Found | None], *, limit_s: float = LIMIT_S) -> Found:
        """What ``seen`` finds, once it finds something. Raises NotMeasured."""
        deadline = time.monotonic() + limit_s
        while (found := seen(self.look())) is None:
            reason = self._failed()
            if reason is not None or time.monotonic() > deadline:
                raise NotMeasured(f"waited for {what}: {reason or f'not within {limit_s:g} s'}")
            time.sleep(LOOK_S)
        return found


def newest_start(logs: Logs, group: str) -> Event | None:
    """The last ``start`` of a group."""
    return next(iter(reversed(logs.of(group, "start"))), None)


def commits_together(logs: Logs, groups: tuple[str, ...], *, after: float, count: int) -> bool | None:
    """True once every group has committed ``count`` steps after a moment in which all of them had a share."""
    for group in groups:
        shared = [e for e in logs.of(group, "commit") if time_of(e) > after and _all_share(e, groups)]
        if len(shared) < count:
            return None
    return True


def share_of_successor(logs: Logs, group: str, incarnation: int) -> float | None:
    """When an incarnation younger than ``incarnation`` first committed a share of its own."""
    for event in logs.of(group, "commit"):
        if int(event.get("incarnation") or 0) > incarnation and (event.get("shares") or {}).get(group):
            return time_of(event)
    return None


def step_seconds(logs: Logs, group: str) -> float:
    """Median seconds of a group's commits so far."""
    values = sorted(float(event.get("seconds") or 0.0) for event in logs.of(group, "commit"))
    return values[len(values) // 2] if values else 0.0


def _all_share(event: Event, groups: tuple[str, ...]) -> bool:
    shares = event.get("shares") or {}
    return all(shares.get(group) for group in groups)
