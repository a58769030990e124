"""When is somebody judged, and on what evidence? The loop that puts the pulses before ``judge`` and does what it says.

It looks eight times within the detection time. Silence of everybody at once says nothing of anybody: this process was
stopped or starved, or its own network is gone. So nobody is judged then, nor before everybody could send again; and
nobody by what it did before, as long as it has not been heard again while others already have. Started by the gateway,
on its event loop; what follows from the evidence is decided in liveness.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from configs.protocol import Pulse, Terms
from configs.words import DepartureCause
from lighthouse.liveness import Case, Heard, Verdict, judge
from lighthouse.members import Life
from lighthouse.quorums import Quorums
from lighthouse.state import Participant, Stored

_LOOKS = 8
"""Within the detection time."""
_DEAF_LOOKS = 4
"""So many without a pulse of anybody, and it is this process that does not hear."""


class Judge:
    """The judgement of the living."""

    def __init__(
        self,
        *,
        lives: Mapping[Participant, Life],
        living: Callable[[], frozenset[Participant]],
        state: Callable[[], Stored],
        quorums: Quorums,
        bury: Callable[[Participant, DepartureCause, str], None],
        publish: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``bury`` and ``publish`` are the gateway's; times are seconds on ``clock``."""
        self._lives = lives
        self._living = living
        self._state = state
        self._quorums = quorums
        self._bury = bury
        self._publish = publish
        self._clock = clock
        self._deaf = False

    async def run(self) -> None:
        """Look, for ever."""
        looked = self._clock()
        while True:
            terms = self._state().terms
            every = (terms.failure_detection_s if terms else 1.0) / _LOOKS
            await asyncio.sleep(every)
            now = self._clock()
            if terms is not None:
                self.look(terms, now=now, paused=now - looked > _DEAF_LOOKS * every)
            looked = now

    def look(self, terms: Terms, *, now: float, paused: bool = False) -> None:
        """Judge once. ``paused``: this process did not run for a while."""
        lives = [life for who in self._living() if (life := self._lives[who]).pulse is not None]
        was_deaf, newest = self._deaf, max((life.pulse_at for life in lives), default=now)
        self._deaf = now - newest > terms.failure_detection_s * _DEAF_LOOKS / _LOOKS
        if paused or (was_deaf and not self._deaf):
            for life in self._lives.values():
                life.heard = life.pulse_at = max(life.pulse_at, now)
                life.stale = True
            self._deaf = False
        if not self._deaf:
            for verdict in judge(self._case(lives, terms, now=now)):
                self._act_on(verdict)

    def _case(self, lives: list[Life], terms: Terms, *, now: float) -> Case:
        last, state, quorums = self._quorums.last, self._state(), self._quorums
        asking = {request.who for request in quorums.waiting.complete(self._living())}
        return Case(
            heard=tuple(
                Heard(
                    who=life.who,
                    pulse=life.pulse or Pulse(),
                    at=life.pulse_at,
                    joined=life.joined,
                    asks=life.who in asking,
                    stale=life.stale,
                )
                for life in lives
            ),
            members=state.known,
            # Before the first grant of this process any of those it remembers may be the last holder.
            holders=tuple(who.group for who in state.known) if last is None else last.up_to_date,
            attempt=0 if last is None else last.attempt,
            over=last is None or quorums.over == last.attempt,
            failures=quorums.failures,
            detection_s=terms.failure_detection_s,
            first_step_s=terms.first_step_limit_s,
            heal_s=terms.heal_limit_s,
            now=now,
        )

    def _act_on(self, verdict: Verdict) -> None:
        if verdict.who is None:
            self._quorums.end_attempt()
            self._publish()
        else:
            self._bury(verdict.who, verdict.cause, verdict.reason)
