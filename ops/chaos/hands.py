"""Who carries a fault out? Signals to ranks, groups and the lighthouse, a node that is gone for a while, a bad network.

Each fault is announced in the launcher's log before it is made, and taken back when its time is up. On the launcher's
main thread.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from configs.run_folder import EventSink
from ops.chaos.driver import Strike, Target
from ops.chaos.network import Network

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "drain": signal.SIGTERM}


class Victim(Protocol):
    """A group's supervisor."""

    def strike(self, number: int, *, rank: int | None = None, announce: Callable[[], object] = ...) -> bool: ...

    def hold(self, held: bool) -> None: ...


class Hands:
    """Makes faults in a running launch."""

    def __init__(
        self,
        *,
        victims: Mapping[str, Victim],
        lighthouse: Callable[[int], bool],
        sink: EventSink,
        network: Network | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``lighthouse`` sends its process a signal and says whether there was one."""
        self._victims = victims
        self._lighthouse = lighthouse
        self._sink = sink
        self._clock = clock
        self._network = network
        self._later: list[tuple[float, Callable[[], object]]] = []

    def strike(self, strike: Strike, step: int) -> bool:
        """Make a fault. False when there is nobody to be struck at this moment."""
        match strike.target:
            case Target.LIGHTHOUSE:
                return self._strike_lighthouse(strike, step)
            case Target.NETWORK:
                return self._strike_network(strike, step)
            case Target.NODE:
                return self._strike_node(strike, step)
            case _:
                return self._strike_group(strike, step)

    def look(self) -> None:
        """Take back what has lasted long enough."""
        now = self._clock()
        due = [call for t, call in self._later if t <= now]
        self._later = [(t, call) for t, call in self._later if t > now]
        for call in due:
            call()

    def close(self) -> None:
        """Leave nobody stopped, held or cut off."""
        for _, call in self._later:
            call()
        self._later = []

    def _announce(self, strike: Strike, step: int, where: str) -> None:
        self._sink(
            "fault", group=strike.group, failpoint=where, action=strike.action, step=step, seconds=strike.seconds
        )

    def _in(self, seconds: float | None, call: Callable[[], object]) -> None:
        if seconds is not None:
            self._later.append((self._clock() + seconds, call))

    def _strike_group(self, strike: Strike, step: int) -> bool:
        victim = self._victims.get(strike.group or "")
        if victim is None:
            return False
        where = "every rank" if strike.rank is None else f"rank {strike.rank}"
        # A drain is asked of rank 0, which asks its fellows.
        rank = 0 if strike.action == "drain" else strike.rank
        announce = functools.partial(self._announce, strike, step, where)
        made = victim.strike(SIGNALS[strike.action], rank=rank, announce=announce)
        if made and strike.action == "stop":
            self._in(strike.seconds, functools.partial(victim.strike, signal.SIGCONT, rank=strike.rank))
        return made

    def _strike_node(self, strike: Strike, step: int) -> bool:
        """kill: gone at once, for ``seconds``; drain: the same after notice; join: it is there (again)."""
        victim = self._victims.get(strike.group or "")
        if victim is None:
            return False
        if strike.action == "join":
            victim.hold(False)
            return True
        victim.hold(True)
        announce = functools.partial(self._announce, strike, step, "node")
        rank = 0 if strike.action == "drain" else None
        made = victim.strike(SIGNALS[strike.action], rank=rank, announce=announce)
        if made or strike.seconds is None:  # a trace's node that is not there stays away
            self._in(strike.seconds, functools.partial(victim.hold, False))
            return True
        victim.hold(False)
        return False

    def _strike_lighthouse(self, strike: Strike, step: int) -> bool:
        if not self._lighthouse(0):
            return False
        self._announce(strike, step, "lighthouse")
        made = self._lighthouse(SIGNALS[strike.action])
        if strike.action == "stop":
            self._in(strike.seconds, functools.partial(self._lighthouse, signal.SIGCONT))
        return made

    def _strike_network(self, strike: Strike, step: int) -> bool:
        if self._network is None:
            return False
        self._announce(strike, step, "network")
        self._network.apply(strike.group, strike.action, strike.amount or 0.0)
        self._in(strike.seconds, functools.partial(self._network.mend, strike.group, strike.action))
        return True
