"""Which incarnations are there, and which have gone? The gateway's volatile memory of lives and departures.

What must survive the gateway (who is buried) is in state.py; this is what it sees of the living, and when and why it
tells the world that one is gone. A closed stream buries at once, but its cause waits a moment for the launcher, who
may know it better (a SIGKILL looks like an exit from here).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from configs.protocol import Dead, Pulse
from configs.words import DepartureCause
from lighthouse.state import Participant

CAUSE_SETTLES_S = 0.3


@dataclasses.dataclass
class Life:
    """What is known of an incarnation that lives. Times are seconds on the gateway's monotonic clock."""

    who: Participant
    life: str = ""
    pid: int = 0
    ranks: tuple[int, ...] = ()
    host: str = ""
    manager: bool = False
    """A torchft.Manager speaks for it; it sends no claims."""
    streams: int = 0
    """Open Watch streams; the last one that closes is its death."""
    joined: float = 0.0
    """When this process first knew of it."""
    heard: float = 0.0
    """Last heartbeat, report or request."""
    phase: str = "starting"
    since: float = 0.0
    """When it entered the phase."""
    attempt: int = 0
    step: int = 0
    tokens: int = 0
    refused: str = ""
    """Why it does not belong here, where that showed only after it had been admitted."""
    pulse: Pulse | None = None
    pulse_at: float = 0.0
    """When the pulse came, or could have come at the earliest."""
    stale: bool = False
    """What the pulse says is from before a time in which nobody could be heard."""


class Departures:
    """Tells of each incarnation's end once, with its cause and the moment it was known."""

    def __init__(self, tell: Callable[[Dead, float], None], wall: Callable[[], float]) -> None:
        """``tell`` is called with the dead and the unix time of its burial."""
        self._tell = tell
        self._wall = wall
        self._dead: dict[Participant, Dead] = {}
        self._unsettled: dict[Participant, tuple[float, asyncio.TimerHandle]] = {}

    def __getitem__(self, who: Participant) -> Dead:
        """Why it is gone; a burial from before this gateway's start has no better word than exited."""
        return self._dead.get(who) or Dead(
            group=who.group, incarnation=who.incarnation, cause=DepartureCause.EXITED, reason="before a restart"
        )

    def note(self, dead: Dead, *, settled: bool) -> None:
        """An incarnation is buried. Unsettled causes are told a moment later, unless ``refine`` comes first."""
        who = Participant(dead.group, dead.incarnation)
        self._dead[who] = dead
        if settled:
            self._tell(dead, self._wall())
            return
        timer = asyncio.get_running_loop().call_later(CAUSE_SETTLES_S, self._settle, who)
        self._unsettled[who] = (self._wall(), timer)

    def refine(self, who: Participant, cause: DepartureCause, reason: str) -> None:
        """Somebody knows better why a buried incarnation is gone; too late once it has been told."""
        if who in self._unsettled:
            self._dead[who] = Dead(group=who.group, incarnation=who.incarnation, cause=cause, reason=reason)
            self._settle(who)

    def flush(self) -> None:
        for who in tuple(self._unsettled):
            self._settle(who)

    def _settle(self, who: Participant) -> None:
        moment, timer = self._unsettled.pop(who)
        timer.cancel()
        self._tell(self._dead[who], moment)
