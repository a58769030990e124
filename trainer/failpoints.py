"""Named places where a test or a chaos run makes things go wrong.

A failpoint fires once in the life of a run: before it acts it writes a ``fault`` event to its group's log, and a
successor that finds it there does not fire again. With nothing configured ``hit`` is the constant no-op.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from configs.failpoints import Failpoint
from configs.run_folder import Event, EventSink

FailpointHit = Callable[..., None]
Act = Callable[[Failpoint], None]


class InjectedError(RuntimeError):
    """What action ``raise`` raises."""


def no_failpoints(name: str, **context: object) -> None:
    """The failpoints of a run without any."""
    del name, context


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
        self.step = 0
        self.microbatch: int | None = None
        self.poison = poison or (lambda: None)

    def at_microbatch(self, microbatch: int | None) -> None:
        """Where in the step's plan this rank computes."""
        self.microbatch = microbatch

    def __call__(self, name: str, **context: object) -> None:
        """Reach the place ``name``; acts if a point is set here."""
        del context
        for point in self._points:
            if point.name == name and self._matches(point):
                self._points.remove(point)
                self._sink("fault", failpoint=str(point), action=point.action, step=self.step)
                act(point, poison=self.poison)
                return

    def _matches(self, point: Failpoint) -> bool:
        if point.step is not None and point.step != self.step:
            return False
        return point.microbatch is None or point.microbatch == self.microbatch


def act(point: Failpoint, *, poison: Callable[[], None]) -> None:
    """Do what the point says to this process."""
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # To this thread: sent to the process, another thread may take it while this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "hang":
            threading.Event().wait()
        case "delay":
            time.sleep(float(point.argument or 0))
        case "exit":
            os._exit(int(float(point.argument or 0)))
        case "nan":
            poison()
        case _:
            raise InjectedError(f"injected at {point.name}")
