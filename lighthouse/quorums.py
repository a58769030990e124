"""How does a decision become a quorum? The loop that decides at every change and answers everybody at once.

Order of a grant, which is what makes it safe: decide, let the engine make the quorum, decide again (somebody may have
died meanwhile), write the journal, tell the event log, answer. Ids come from one running counter; an attempt has a
number of its own, a quorum keeps its id while members, and their communicators, stay the same. Owned by the gateway.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection
from types import ModuleType

from configs.protocol import Claim, Grant, Kind
from configs.run_folder import EventSink
from configs.words import RUNNING_BITS, SCRATCH, DepartureCause, Lineage
from lighthouse.decide import Again, Decision, Expire, Lost, Seat, Situation, Wait, decide, moved_on
from lighthouse.engine import Engine, EngineError, requesters
from lighthouse.joins import Joins
from lighthouse.metrics import Metrics
from lighthouse.protos import torchft_pb2
from lighthouse.state import Fence, Journal, Participant, Stored
from lighthouse.waiting import Denial, LookAgain, Refused, Waiting

_ENGINE_TRIES = 3
Bury = Callable[[Participant, DepartureCause, str], None]


class Quorums:
    """The requests, the deciding, and the last grant."""

    def __init__(
        self,
        *,
        journal: Journal,
        sink: EventSink,
        metrics: Metrics,
        torchft: ModuleType,
        min_groups: int,
        living: Callable[[], frozenset[Participant]],
        bury: Bury,
        publish: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``publish`` tells all watchers; ``min_groups`` is the least that any run's terms may ask for."""
        self.waiting = Waiting(self.wake)
        self.last: Grant | None = None
        self.over: int | None = None
        """The last attempt, once a member has moved on without its commit."""
        self.recent: tuple[tuple[Participant, ...], ...] = (journal.state.known,)
        """Members of the last two grants."""
        self.released: set[Participant] = set()
        self.joins = Joins()
        self.failures = 0
        """Grants in a row to the same members at the same state: attempts that came to nothing."""
        self._journal = journal
        self._sink = sink
        self._metrics = metrics
        self._torchft = torchft
        self._min_groups = min_groups
        self._living = living
        self._bury = bury
        self._publish = publish
        self._clock = clock
        self._opened = self._lost = clock()
        self._engine: Engine | None = None
        self._awaited: Participant | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _state(self) -> Stored:
        return self._journal.state

    @property
    def waits_for(self) -> str:
        """Why there is no next quorum yet, for people; decided anew."""
        decision = self._decided()
        if not isinstance(decision, Wait):
            return ""
        return "; ".join([decision.reason, *self.waiting.incomplete(self._living())])

    def wake(self) -> None:
        """Something has changed: decide again."""
        self._wake.set()

    def lost(self, who: Participant) -> None:
        """An incarnation was buried."""
        if who in self._state.known:
            self._lost = self._clock()
        self.joins.lost(who, now=self._clock())
        self.wake()

    def seconds_waited(self) -> float:
        """For how long the first participant that asks has waited, or, while none lives, the first group; else 0."""
        waits = self.waiting.waits(now=self._clock())
        if not self._living().isdisjoint(self._state.known):
            waits = {who: seconds for who, seconds in waits.items() if who in self._state.known}
        return max(waits.values(), default=0.0)

    async def ask(self, claim: Claim) -> Grant | Denial:
        """Wait for the next grant; the claim itself may end the running attempt."""
        if moved_on(claim, self._state) and self.over != self._state.attempt:
            self.over = self._state.attempt
            self._publish()
        return await self.waiting.ask(claim, now=self._clock())

    async def seat(
        self, who: Participant, member: torchft_pb2.QuorumMember, *, claim: Claim | None
    ) -> torchft_pb2.Quorum | Denial:
        """Wait for torchft's side of the next grant; with ``claim`` this request stands for both sides."""
        asked = None if claim is None else asyncio.create_task(self._ask_always(claim))
        try:
            return await self.waiting.seat(who, member)
        finally:
            if asked is not None:
                asked.cancel()

    async def _ask_always(self, claim: Claim) -> None:
        """A torchft Manager has no disk to look at again."""
        while isinstance(await self.ask(claim), LookAgain):
            continue

    def end_attempt(self) -> None:
        """The running attempt is over for everybody."""
        self.over = self._state.attempt

    def confirm_again(self, announced: Collection[Lineage]) -> None:
        """Write the last ``confirmed`` event if the lighthouse died between journal and event log."""
        state = self._state
        if state.granted != SCRATCH and state.granted not in announced:
            self._confirmed(state.granted, state.confirmed_by)

    async def run(self) -> None:
        """Decide at every change, for ever. An error in here ends the lighthouse: nobody may go on without it."""
        failed = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._act()
                failed = 0
            except EngineError:
                failed += 1
                if failed == _ENGINE_TRIES:
                    raise
                await self._use(None)
                self.wake()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._use(None)

    async def _act(self) -> None:
        if self._still_awaited():
            return
        decision, self._awaited = self._decided(), None
        match decision:
            case Wait(until=until, awaited=awaited):
                self._awaited = awaited
                self._wake_at(until)
            case Expire(who=absent, reason=reason):
                for who in absent:
                    self._bury(who, DepartureCause.EXPIRED, reason)
            case Again(who=stale):
                for who in stale:
                    self.waiting.ask_again(who)
            case Lost(reason=reason):
                self.waiting.deny_all(Refused(reason, quorum_lost=True))
            case Seat():
                await self._seat(decision)
                self.wake()

    def _still_awaited(self) -> bool:
        """Whether the last decision holds, for the one it waits for lives and has not asked. Most requests change no
        more than that there are more of them: to decide at each would cost the square of their number."""
        who = self._awaited
        return who is not None and who in self._living() and not self.waiting.asked(who)

    def _decided(self) -> Decision:
        case = self._situation()
        return Wait(reason="no group has joined") if case is None else decide(case)

    def _wake_at(self, until: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if until is not None:
            delay = max(until - self._clock(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self.wake)

    def _situation(self) -> Situation | None:
        terms, living = self._state.terms, self._living()
        if terms is None:
            return None
        return Situation(
            requests=self.waiting.complete(living),
            stored=self._state,
            living=living,
            terms=dataclasses.replace(terms, min_groups=max(terms.min_groups, self._min_groups)),
            engine=None if self._engine is None else self._engine.members,
            opened=self._opened,
            lost=self._lost,
            now=self._clock(),
            hold=self.joins.hold(interval_s=terms.join_interval_s),
        )

    async def _seat(self, seat: Seat) -> None:
        engine = self._engine
        if seat.new_id or engine is None:
            engine = Engine(self._torchft, members=seat.participants, quorum_id=self._state.next_id())
        asked = requesters(
            self.waiting.members(), members=seat.participants, holders=seat.up_to_date, step=seat.current.step
        )
        try:
            quorum = await engine.quorum(asked)
            case = self._situation()
            if case is None or decide(case) != seat:  # somebody died, or took a request back, meanwhile
                return
            self._grant(seat, engine.quorum_id, quorum)
            await self._use(engine)
        finally:
            if engine is not self._engine:
                await engine.close()

    def _grant(self, seat: Seat, quorum_id: int, quorum: torchft_pb2.Quorum) -> None:
        """Store, tell, answer: no await in between."""
        before, attempt = self._state, self._state.next_id()
        following = Lineage(before.granted.step + 1, before.last_quorum_id)
        commit = seat.current if seat.current == following or seat.current.step > before.granted.step else None
        makers = tuple(who.group for who in before.known) if seat.current == following else seat.up_to_date
        floors = {who.group: max(before.floors.get(who.group, 0), who.incarnation) for who in seat.participants}
        fence = (Fence(seat.current.step, quorum_id),) if seat.rollback is not None else ()
        self._journal.commit(
            dataclasses.replace(
                before,
                running=before.running + 1,
                attempt=attempt,
                granted=seat.current,
                confirmed_by=makers if commit else before.confirmed_by,
                last_quorum_id=quorum_id,
                known=seat.participants,
                floors={**before.floors, **floors},  # rule supersede
                fences=before.fences + fence,
            )
        )
        grant = Grant(
            attempt=attempt,
            quorum_id=quorum_id,
            kind=seat.kind,
            members=seat.members,
            up_to_date=seat.up_to_date,
            current=seat.current,
            restore=seat.restore,
            reason=seat.reason,
            fences=tuple(Lineage(fence.step, fence.quorum_id) for fence in self._state.fences),
        )
        self.joins.granted(
            members=seat.participants, before=before.known, up_to_date=seat.up_to_date, now=self._clock()
        )
        stuck = seat.participants == before.known and seat.current == before.granted and seat.restore is None
        self.failures = self.failures + 1 if stuck else 0
        self.last, self.recent = grant, (self.recent[-1], seat.participants)
        waits = self.waiting.waits(now=self._clock())
        if commit:
            self._confirmed(commit, makers)
        self._tell(grant, seat, before=before, seconds=max(waits.values(), default=0.0))
        self._metrics.granted(
            running=quorum_id & (2**RUNNING_BITS - 1),
            participants=len(seat.members),
            changed=seat.participants != before.known,
        )
        self._answer(grant, seat, quorum, waits)

    def _answer(self, grant: Grant, seat: Seat, quorum: torchft_pb2.Quorum, waits: dict[Participant, float]) -> None:
        for who in seat.participants:
            self._metrics.waited(waits[who])
            self.waiting.grant(who, grant, quorum)
        for who in self.waiting.asking:
            if who.group == seat.released:
                self.released.add(who)
                release = dataclasses.replace(grant, kind=Kind.RELEASE, restore=None)
                self.waiting.grant(who, release, Refused("released: its drain is granted"))
        self._publish()

    def _confirmed(self, lineage: Lineage, participants: tuple[str, ...]) -> None:
        self._sink("confirmed", step=lineage.step, lineage=str(lineage), participants=list(participants))

    def _tell(self, grant: Grant, seat: Seat, *, before: Stored, seconds: float) -> None:
        if seat.rollback is not None:
            to, reason = str(grant.current), seat.rollback
            self._sink("rollback", **{"from": str(before.granted)}, to=to, quorum_id=grant.quorum_id, reason=reason)
        self._sink(
            "quorum",
            step=grant.current.step,
            attempt=grant.attempt,
            quorum_id=grant.quorum_id,
            epoch=grant.attempt >> RUNNING_BITS,
            lineage=str(grant.current),
            participants=list(grant.names),
            healing=list(grant.healing),
            seconds=seconds,
            kind=grant.kind.value,
            restore=None if grant.restore is None else str(grant.restore),
            released=seat.released,
            held=list(seat.held),
            reason=grant.reason,
        )

    async def _use(self, engine: Engine | None) -> None:
        """Make ``engine`` the running one and close the one before."""
        before, self._engine = self._engine, engine
        if before is not None and before is not engine:
            await before.close()
