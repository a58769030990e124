"""Who lives, and what may they know? The gateway: it admits incarnations, sees them die, and tells the others.

Rule: a death is on disk first, then told to every watcher, always the whole of what is known (level-triggered), so
that nobody who reconnects or reads late misses it. Quorums are made in quorums.py. One event loop, no threads;
everything between two awaits is atomic. Called by service.py, which speaks gRPC; knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection
from types import ModuleType

from configs.protocol import Claim, Dead, Grant, Notice, Pulse, Seated, Terms, Voucher
from configs.run_folder import EventSink
from configs.words import DepartureCause, Lineage
from lighthouse.admission import Later, judge_join, judge_voucher
from lighthouse.judging import Judge
from lighthouse.managers import claim_of, stranger
from lighthouse.members import Departures, Life
from lighthouse.metrics import Metrics
from lighthouse.protos import torchft_pb2
from lighthouse.quorums import Quorums
from lighthouse.state import Journal, Participant, Stored, Vouched
from lighthouse.waiting import Buried, Denial, Ended, Refused, Stopping

_REFUSALS_TOLD = 1000
"""More different ones are not a mistake, and the event log is not for them."""


class Gateway:
    """The coordinator behind its service. Made on the event loop that it lives on."""

    def __init__(
        self,
        *,
        journal: Journal,
        sink: EventSink,
        torchft: ModuleType,
        min_groups: int = 1,
        announced: Collection[Lineage] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begins a new epoch, on disk. ``announced``: lineages that the event log already calls confirmed."""
        epoch = max(journal.state.epoch + 1, int(wall()))
        journal.commit(dataclasses.replace(journal.state, epoch=epoch, running=0))
        self.metrics = Metrics()
        self.metrics.run = journal.state.terms.run if journal.state.terms else ""
        self.config = ""
        self.lives: dict[Participant, Life] = {}
        self.quorums = Quorums(
            journal=journal,
            sink=sink,
            metrics=self.metrics,
            torchft=torchft,
            min_groups=min_groups,
            living=lambda: self.living,
            bury=self._bury,
            publish=self._publish,
            clock=clock,
        )
        self.quorums.confirm_again(announced)
        self.judge = Judge(
            lives=self.lives,
            living=lambda: self.living,
            state=lambda: self.state,
            quorums=self.quorums,
            bury=self._bury,
            publish=self._publish,
            clock=clock,
        )
        self._journal = journal
        self._sink = sink
        self._clock = clock
        self._opened = clock()
        self._turned_away: set[str] = set()
        self._departures = Departures(self._tell_departure, wall)
        self._news = asyncio.Event()
        self._living: tuple[object, frozenset[Participant]] | None = None
        self._told: Notice | None = None
        self.stopping = False

    @property
    def state(self) -> Stored:
        return self._journal.state

    @property
    def living(self) -> frozenset[Participant]:
        """Incarnations that hold a stream and are not buried."""
        floors = self.state.floors  # replaced, never changed in place
        if self._living is None or self._living[0] is not floors:
            found = (who for who, life in self.lives.items() if life.streams and not self.state.buried(who))
            self._living = floors, frozenset(found)
        return self._living[1]

    def ages(self) -> dict[str, float]:
        """Seconds since each living group was last heard."""
        now = self._clock()
        return {who.group: now - self.lives[who].heard for who in sorted(self.living)}

    def seconds_since(self, moment: float) -> float:
        return self._clock() - moment

    async def run(self) -> None:
        """Make quorums, and judge who lives, until cancelled."""
        tasks = [asyncio.create_task(self.quorums.run()), asyncio.create_task(self.judge.run())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # neither ends but by an error, which is the caller's
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """From here on closing streams are the gateway's doing, not deaths. Everybody who waits is let go."""
        self.stopping = True
        self._departures.flush()
        self.quorums.waiting.deny_all(Stopping())
        self._publish()
        await self.quorums.stop()

    # ---- joining and leaving ---------------------------------------------------------------------------------------

    def join(self, terms: Terms, life: Life, *, config: str = "") -> Seated | Refused | Later:
        """Give ``life`` (whose incarnation is still open) the next number of its group and bury its predecessors.

        Joining again with the same token gives the same answer.
        """
        group, state = life.who.group, self.state
        newest = Participant(group, state.incarnations.get(group, 0))
        settling = self._clock() < self._opened + terms.failure_detection_s
        refusal = judge_join(terms, group, stored=state, living=self.living, settling=settling)
        if refusal is not None:
            self._tell_refusal(life, refusal)
            return refusal
        if life.life and state.lives.get(group) == life.life:
            if state.buried(newest):
                return Refused(f"{newest} is buried: {self._departures[newest].reason}")
            return Seated(incarnation=newest.incarnation, epoch=state.epoch, ended=state.ended)
        who = Participant(group, newest.incarnation + 1)
        if newest.incarnation and not state.buried(newest):
            self._bury(newest, DepartureCause.EXITED, f"superseded by {who}")
        reopened = state.terms is not None and terms.steps > state.terms.steps
        self._journal.commit(
            dataclasses.replace(
                self.state,
                incarnations={**state.incarnations, group: who.incarnation},
                lives={**state.lives, group: life.life},
                managers={**state.managers, **({group: who.incarnation} if life.manager else {})},
                terms=terms,
                ended=None if reopened else state.ended,
            )
        )
        now = self._clock()
        self.lives[who] = dataclasses.replace(life, who=who, joined=now, heard=now, since=now)
        self.metrics.run, self.config = terms.run, config or self.config
        self._sink("join", group=group, incarnation=who.incarnation)
        self._publish()
        return Seated(incarnation=who.incarnation, epoch=state.epoch, ended=self.state.ended)

    def vouch(self, who: Participant, voucher: Voucher) -> Denial | None:
        """What an incarnation shows before it first asks; None when it belongs here."""
        denial = self.denial(who) or judge_voucher(who, voucher, stored=self.state)
        if denial is None:
            brought = Vouched(who.incarnation, voucher.store, voucher.golden)
            self._journal.commit(dataclasses.replace(self.state, vouched={**self.state.vouched, who.group: brought}))
        elif isinstance(denial, Refused) and (life := self.lives.get(who)):
            life.refused = denial.reason
            self._tell_refusal(life, denial)
        return denial

    def leave(self, group: str, incarnation: int | None, *, life: str, cause: DepartureCause, reason: str) -> None:
        """An incarnation is gone, by its own or its launcher's word. Unknown ones are passed over."""
        if incarnation is None and life and self.state.lives.get(group) == life:
            incarnation = self.state.incarnations[group]
        if incarnation is not None and 1 <= incarnation <= self.state.incarnations.get(group, 0):
            self._bury(Participant(group, incarnation), cause, reason)

    def kill(self, group: str, reason: str) -> Refused | None:
        """Bury the group's present incarnation on request."""
        who = Participant(group, self.state.incarnations.get(group, 0))
        if who not in self.living:
            return Refused(f"no incarnation of {group} is alive")
        self._bury(who, DepartureCause.KILLED, reason)
        return None

    def end(self, who: Participant, lineage: Lineage) -> Denial | None:
        """Record the end of the run: its last state is published (rule *end_recorded*). Told twice is told once."""
        if self.state.ended == lineage:
            return None
        denial = self.denial(who)
        if denial is not None:
            return denial
        if lineage != self.state.granted or who not in self.state.known:
            return Refused(f"{who} may not end the run at {lineage}: the quorum granted {self.state.granted}")
        self._journal.commit(dataclasses.replace(self.state, ended=lineage, known=()))
        self._sink("end", group=who.group, incarnation=who.incarnation, step=lineage.step, lineage=str(lineage))
        self.quorums.waiting.deny_all(Ended(lineage))
        self._publish()
        return None

    # ---- signs of life -----------------------------------------------------------------------------------------------

    def heard(self, who: Participant) -> Life | None:
        """An incarnation has given a sign of life other than its stream."""
        life = self.lives.get(who)
        if life is not None:
            life.heard = self._clock()
        return life

    def report(
        self, who: Participant, *, phase: str | None, attempt: int | None, step: int | None, tokens: int | None
    ) -> None:
        """Where an incarnation stands, by its own word."""
        life = self.heard(who)
        if life is None:
            return
        if phase is not None and phase != life.phase:
            life.phase, life.since = phase, life.heard
        life.attempt = life.attempt if attempt is None else attempt
        life.step = life.step if step is None else step
        life.tokens = life.tokens if tokens is None else tokens

    def pulse(self, who: Participant, pulse: Pulse) -> None:
        """A sign of life with what every rank of the group does."""
        life = self.heard(who)
        if life is None:
            return
        life.pulse, life.pulse_at, life.stale = pulse, life.heard, False
        if pulse.ranks:
            phase = pulse.ranks[0].phase
            if phase != life.phase:
                life.phase, life.since = phase, life.heard - pulse.ranks[0].age_s
            life.attempt, life.step, life.tokens = pulse.ranks[0].attempt, pulse.step, pulse.tokens

    def open_stream(self, who: Participant) -> None:
        """A Watch stream of an admitted incarnation begins: it lives."""
        now = self._clock()
        self.lives.setdefault(who, Life(who=who, joined=now, since=now)).streams += 1
        self._living = None
        self.heard(who)
        self.quorums.wake()

    def close_stream(self, who: Participant) -> None:
        """A Watch stream has closed. The last one is the death notice."""
        life = self.lives[who]
        life.streams -= 1
        self._living = None
        if life.streams or self.stopping:
            return
        if self.state.ended is not None or who in self.quorums.released:
            self._bury(who, DepartureCause.LEFT, "its stream closed")
        else:
            self._bury(who, DepartureCause.EXITED, "its stream closed", settled=False)

    def news(self) -> asyncio.Event:
        """Set when any notice may have changed; take it before ``notice``, so that nothing is missed."""
        return self._news

    def notice(self, who: Participant) -> Notice:
        """Everything ``who`` must know now."""
        if self._told is None:  # made anew when something may have changed, not for every reader
            recent = dict.fromkeys(other for members in self.quorums.recent for other in members)
            dead = tuple(self._departures[other] for other in recent if self.state.buried(other))
            over = () if self.quorums.over is None else (self.quorums.over,)
            self._told = Notice(epoch=self.state.epoch, dead=dead, over=over, ended=self.state.ended)
        denial = self.denial(who)
        own = denial.reason if isinstance(denial, Buried | Refused) else None
        return self._told if own is None else dataclasses.replace(self._told, buried=own)

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, claim: Claim) -> Grant | Denial:
        """Wait for the next quorum."""
        who = Participant(claim.group, claim.incarnation)
        life = self.heard(who)
        if life is not None and life.refused:
            return Refused(life.refused)
        return self.denial(who) or await self.quorums.ask(claim)

    async def seat(self, who: Participant, member: torchft_pb2.QuorumMember) -> torchft_pb2.Quorum | Denial:
        """Wait for torchft's side of the next quorum."""
        self.heard(who)
        denial = self.denial(who) or stranger(who, member, self.state)
        return denial or await self.quorums.seat(who, member, claim=claim_of(who, member, self.state))

    def denial(self, who: Participant) -> Denial | None:
        """Why ``who`` has no business here, if so."""
        if not 1 <= who.incarnation <= self.state.incarnations.get(who.group, 0):
            return Refused(f"{who} was not admitted here: join first")
        if self.state.ended is not None:
            return Ended(self.state.ended)
        if self.state.buried(who):
            return Buried(self._departures[who].reason or self._departures[who].cause.value)
        return None

    # ---- private -----------------------------------------------------------------------------------------------------

    def _tell_refusal(self, life: Life, refusal: Refused | Later) -> None:
        """Once for each group and reason: who is refused may ask again for ever."""
        text = f"{life.who.group}: {refusal.reason}"
        if isinstance(refusal, Later) or text in self._turned_away or len(self._turned_away) >= _REFUSALS_TOLD:
            return
        self._turned_away.add(text)
        number = life.who.incarnation or None
        self._sink("refusal", group=life.who.group, incarnation=number, host=life.host, reason=refusal.reason)

    def _bury(self, who: Participant, cause: DepartureCause, reason: str, *, settled: bool = True) -> None:
        """Declare an incarnation lost, for ever: on disk first, then told to everybody."""
        if self.state.buried(who):
            self._departures.refine(who, cause, reason)
            return
        self._journal.commit(self.state.bury(who))
        life = self.lives.get(who)
        if life is not None and life.refused and cause is DepartureCause.EXITED:
            cause, reason = DepartureCause.REFUSED, life.refused
        dead = Dead(group=who.group, incarnation=who.incarnation, cause=cause, reason=reason)
        self._departures.note(dead, settled=settled)
        self.quorums.waiting.deny(who, Buried(reason))
        self.quorums.lost(who)
        self._publish()

    def _tell_departure(self, dead: Dead, moment: float) -> None:
        self.metrics.departed(dead.cause.value)
        who = {"group": dead.group, "incarnation": dead.incarnation}
        self._sink("departure", **who, t=moment, cause=dead.cause.value, reason=dead.reason)

    def _publish(self) -> None:
        """Every watcher looks at its notice again, and the next decision is due."""
        self._told = None
        self._news.set()
        self._news = asyncio.Event()
        self.quorums.wake()
