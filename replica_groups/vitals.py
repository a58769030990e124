"""What does every rank of this group do, and when was it last heard?

Each rank tells rank 0 over its lifeline, many times within the detection time, in which attempt and phase it is and for
how long; rank 0 passes all of it to the gateway with each pulse. A thread does the telling, so a rank whose main thread
waits in a collective is heard, and one that is stopped is not: the gateway can tell the two apart.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from configs.protocol import Pulse, RankPulse
from replica_groups.lifelines import Line, Message

Standing = tuple[int, str, float]
"""Attempt, phase, seconds in it."""
_RECENT = 16


@dataclasses.dataclass
class _Told:
    standing: Standing
    at: float


class Vitals:
    """One rank's knowledge; on rank 0, of the whole group. Thread-safe."""

    def __init__(self, *, world: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        began = clock()
        self._told = {rank: _Told((0, "starting", 0.0), began) for rank in range(1, world)}
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.standing: Callable[[], Standing] = lambda: (0, "starting", clock() - began)
        """Where this rank stands now; set once the rank has phases."""
        self.step = 0
        self.tokens = 0

    def attempt_took(self, seconds: float | None, *, step: int, tokens: int) -> None:
        """An attempt of this incarnation has ended in a commit, so long after its quorum; None where somebody healed in
        it. Neither the wait for a quorum nor a heal says how long this group may be waited for."""
        if seconds is not None:
            self._recent.append(seconds)
        self.step, self.tokens = step, tokens

    def hear(self, rank: int, message: Message) -> None:
        """Rank 0: another rank has told where it stands."""
        attempt, phase, age = message["vitals"]
        self._told[rank] = _Told((int(attempt), str(phase), float(age)), self._clock())

    def pulse(self) -> Pulse:
        """Rank 0: the whole group's."""
        attempt, phase, age = self.standing()
        ranks = [RankPulse(attempt=attempt, phase=phase, age_s=age)]
        now = self._clock()
        for rank in sorted(self._told):
            told = self._told[rank]
            attempt, phase, age = told.standing
            silent = now - told.at
            ranks.append(RankPulse(attempt=attempt, phase=phase, age_s=age + silent, silent_s=silent))
        recent = list(self._recent)
        return Pulse(ranks=tuple(ranks), usual_s=max(recent) if recent else None, step=self.step, tokens=self.tokens)

    def tell_always(self, line: Line, *, every_s: float) -> None:
        """Another rank: tell rank 0 for the rest of the process's life."""

        def tell() -> None:
            pause = threading.Event()
            while True:
                line.send({"vitals": self.standing()})
                pause.wait(every_s)

        threading.Thread(target=tell, name="vitals", daemon=True).start()
