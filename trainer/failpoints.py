"""Named places where a test or a chaos run makes things go wrong.

A failpoint fires once in the life of a run: before it acts it writes a ``fault`` event to its group's log, and a
successor that finds it there does not fire again. With nothing configured a call returns at once. What a place must do
itself (spoil the bytes it is about to send) it is told by the action that the call returns.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from configs.failpoints import DEFAULT_PERCENT, PARTS, Failpoint
from configs.run_folder import Event, EventSink


class InjectedError(RuntimeError):
    """What action ``raise`` raises."""


def no_failpoints(name: str, part: int | None = None, **context: object) -> None:
    """The failpoints of a run without any."""
    del name, part, context


class Failpoints:
    """The failpoints of one rank."""

    def __init__(
        self,
        points: Iterable[Failpoint],
        *,
        group: str,
        rank: int,
        past: Iterable[Event],
        sink: EventSink,
        poison: Callable[[], None] | None = None,
    ) -> None:
        fired = {(e.get("failpoint"), e.get("action")) for e in past if e["event"] == "fault"}
        self._points = [p for p in points if p.group == group and p.rank == rank and (str(p), p.action) not in fired]
        self._sink = sink
        self._lock = threading.Lock()
        self.step = 0
        self.microbatch: int | None = None
        self.poison = poison or (lambda: None)
        """Makes the next gradient NaN."""
        self.flip: Callable[[], None] = lambda: None
        """Flips a bit of a parameter."""

    def at_microbatch(self, microbatch: int | None) -> None:
        """Where in the step's plan this rank computes."""
        self.microbatch = microbatch

    def __call__(
        self, name: str, part: int | None = None, *, step: int | None = None, done: int = 0, total: int = 0
    ) -> Any:
        """Reach the place ``name``; acts if a point is set here. Returns the action (a str) that is the place's own
        to carry out, or None. ``part``: of a place with numbered parts; ``done`` of ``total`` where it is on its way
        through them. ``step``: where it is not that of the attempt."""
        if not self._points:
            return None
        point = self._take(name, part, self.step if step is None else step, done, total)
        if point is None:
            return None
        self._sink("fault", failpoint=str(point), action=point.action, step=self.step)
        return self._act(point)

    def _take(self, name: str, part: int | None, step: int, done: int, total: int) -> Failpoint | None:
        """The point that is set here, which is set no longer. Places are passed by several threads."""
        with self._lock:
            for point in self._points:
                if (
                    point.name == name
                    and point.step in (None, step)
                    and self._is_at(point, part=part, done=done, total=total)
                ):
                    self._points.remove(point)
                    return point
        return None

    def _is_at(self, point: Failpoint, *, part: int | None, done: int, total: int) -> bool:
        match PARTS.get(point.name):
            case "percent":
                wanted = DEFAULT_PERCENT if point.part is None else point.part
                return 100 * done >= wanted * total
            case "bucket":
                return point.part in (None, part)
            case "microbatch":
                return point.part in (None, self.microbatch)
        return True

    def _act(self, point: Failpoint) -> str | None:
        match point.action:
            case "nan":
                self.poison()
            case "flip":
                self.flip()
            case "corrupt" | "truncate":
                return point.action
            case _:
                act(point)
        return None


def act(point: Failpoint) -> None:
    """Do what the point says to this process."""
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            if point.argument is not None:
                _wake_in(point.argument)
            # To this thread: sent to the process, another thread may take it while this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "hang":
            threading.Event().wait()
        case "delay":
            time.sleep(float(point.argument or 0))
        case "exit":
            os._exit(int(float(point.argument or 0)))
        case "full":
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (injected at {point.name})")
        case _:
            raise InjectedError(f"injected at {point.name}")


def _wake_in(seconds: float) -> None:
    """Who is stopped cannot wake itself: leave that to a process of its own."""
    subprocess.Popen(
        ["/bin/sh", "-c", 'sleep "$0"; kill -CONT "$1"', f"{seconds:g}", str(os.getpid())], start_new_session=True
    )
