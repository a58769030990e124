"""Where does the time of a rank go?

Every second since the process began belongs to exactly one phase. The names are the keys of the report. Clock injected.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable


class Phase(enum.StrEnum):
    STARTING = "starting"
    REHEARSE = "rehearse"
    QUORUM = "quorum"
    HEAL = "heal"
    DATA = "data"
    COMPUTE = "compute"
    REDUCE = "reduce"
    VOTE = "vote"
    OPTIMIZER = "optimizer"
    CHECKPOINT_STALL = "checkpoint_stall"
    DISCARDED = "discarded"
    WAITING = "waiting"
    VALIDATION = "validation"
    DRAINING = "draining"
    OTHER = "other"


OUTSIDE = (Phase.STARTING, Phase.REHEARSE, Phase.CHECKPOINT_STALL)
"""What comes before an attempt is no part of it, and is not lost with it."""


class Phases:
    """A stopwatch that is always in one phase."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = (Phase.STARTING, clock())
        self._attempt: dict[Phase, float] = {}

    @property
    def current(self) -> Phase:
        return self._at[0]

    @property
    def standing(self) -> tuple[Phase, float]:
        """The phase and the seconds in it. Any thread."""
        phase, since = self._at  # one read: another thread may enter the next phase meanwhile
        return phase, self._clock() - since

    def enter(self, phase: Phase) -> None:
        """From now on time belongs to ``phase``."""
        now = self._clock()
        current, since = self._at
        self._attempt[current] = self._attempt.get(current, 0.0) + now - since
        self._at = (phase, now)

    def so_far(self, phase: Phase) -> float:
        """Seconds spent in ``phase`` since the last ``take``."""
        self.enter(self._at[0])
        return self._attempt.get(phase, 0.0)

    def take(self, *, next_phase: Phase, discarded: bool = False) -> dict[str, float]:
        """Seconds by phase since the last ``take``; an attempt that was discarded is one phase, whatever it did."""
        self.enter(next_phase)
        taken, self._attempt = self._attempt, {}
        if discarded:
            before = {phase: taken.pop(phase) for phase in OUTSIDE if phase in taken}
            taken = {**before, Phase.DISCARDED: sum(taken.values())}
        return {phase.value: seconds for phase, seconds in taken.items()}
