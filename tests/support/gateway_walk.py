"""One walk of the protocol model, taken by the real gateway too: each event is done to both, and both must then agree.

The real one is a Gateway with its journal on disk and its loop of decisions; its engine is a stand-in that answers
at once, and the clock leaps, so that no wait has time to matter. A death is learned at once, as a closed stream is, and
whatever can be granted is granted before the next event: the gateway does not dawdle.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from pathlib import Path
from typing import Any

from configs.protocol import Claim, Kind
from configs.words import DepartureCause, Lineage
from lighthouse.gateway import Gateway
from lighthouse.members import Life
from lighthouse.protos import torchft_pb2
from lighthouse.state import Journal, Participant
from lighthouse.waiting import LookAgain
from tests.protocol_check import successors
from tests.protocol_model import Model
from tests.protocol_words import DOWN, HEALING, LEFT, POSTED, SEATED, lineage
from tests.support.lighthouse import terms

TURNS = 40
"""Of the event loop, after which everything that can happen at the gateway has happened."""


class Walk:
    """The model's state and the real gateway, side by side."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.state = model, model.first
        self._path, self._clock = folder / "state", itertools.count(0, 100)
        self._ids = {0: 0}
        self._asks: dict[int, asyncio.Task[Any]] = {}
        self._seats: dict[int, asyncio.Task[Any]] = {}
        self.path: list[str] = []
        """What has happened so far, for a test that fails."""
        self._open()

    # The real side.

    def _open(self) -> None:
        self.journal = Journal(self._path)
        self.gateway = Gateway(
            journal=self.journal,
            sink=lambda event, **fields: None,
            torchft=None,  # type: ignore[arg-type]  # the engine is a stand-in
            clock=lambda: float(next(self._clock)),
        )
        self._running = asyncio.create_task(self.gateway.quorums.run())

    async def crash(self) -> None:
        """SIGKILL: nothing more is written, every request is lost."""
        self._running.cancel()
        for task in (*self._asks.values(), *self._seats.values()):
            task.cancel()
        await asyncio.gather(self._running, *self._asks.values(), *self._seats.values(), return_exceptions=True)
        self._asks, self._seats = {}, {}
        self.gateway.stopping = True
        self.journal.close()

    def _stream(self, who: Participant) -> None:
        life = self.gateway.lives.get(who)
        if life is None or not life.streams:
            self.gateway.open_stream(who)

    def _ask(self, g: int, pending: Any) -> None:
        inc, hist, void, drain = pending
        who = Participant(f"g{g}", inc)
        if self.gateway.state.incarnations.get(who.group, 0) < inc:
            config = terms(groups=self.model.n, steps=self.model.steps)
            seated = self.gateway.join(config, Life(who=who))
            assert seated.incarnation == inc
        self._stream(who)
        claim = Claim(
            group=who.group,
            incarnation=inc,
            lineage=self._real(lineage(hist)),
            void=void,
            drain=drain,
        )
        self._asks[g] = asyncio.create_task(self._ask_always(g, claim))
        member = torchft_pb2.QuorumMember(replica_id=str(who), world_size=1)
        self._seats[g] = asyncio.create_task(self.gateway.seat(who, member))

    async def _ask_always(self, g: int, claim: Claim) -> Any:
        """As a group's rank 0 does: with what the disk shows, and again when it is told to look again."""
        while True:
            disk = self.state.disks[self.model.disk(g)] if claim.void else ()
            shown = dataclasses.replace(claim, disk=tuple(self._real(lineage(h)) for h in disk))
            answer = await self.gateway.ask(shown)
            if not isinstance(answer, LookAgain):
                return answer

    def _real(self, lin: tuple[int, int]) -> Lineage:
        return Lineage(lin[0], self._ids[lin[1]])

    # Both sides.

    async def take(self, label: str | None, after: Any) -> None:
        """One event of the model, done to the real gateway as well."""
        before, self.state = self.state, after
        if before.gw.up and not after.gw.up:
            await self.crash()
        elif after.gw.up and not before.gw.up:
            self._open()
            for g, grp in enumerate(after.groups):
                if grp.phase not in (DOWN, LEFT) and grp.inc >= after.gw.floor[g]:
                    self._stream(Participant(f"g{g}", grp.inc))
        elif after.gw.ended and not before.gw.ended:
            who = next(Participant(f"g{h}", i) for h, i in before.gw.known if before.groups[h].view)
            assert self.gateway.end(who, self._real(before.gw.granted)) is None
        elif label is not None:  # a grant is the gateway's own doing
            for g, (old, new) in enumerate(zip(before.gw.floor, after.gw.floor, strict=True)):
                if new > old:
                    self.gateway.leave(f"g{g}", new - 1, life="", cause=DepartureCause.EXITED, reason=label)
            for g, (was, now) in enumerate(zip(before.groups, after.groups, strict=True)):
                if after.gw.up and now.phase == LEFT != was.phase:
                    self.gateway.leave(f"g{g}", was.inc, life="", cause=DepartureCause.LEFT, reason=label)
            for g, pending in enumerate(after.gw.pending):
                if pending and (pending != before.gw.pending[g] or after.groups[g].inc != before.groups[g].inc):
                    self._ask(g, pending)
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._running.done() and not self.gateway.stopping:
            self._running.result()

    async def granted(self, after: Any) -> None:
        """The model grants; the real one must just have done so, and with the same answer."""
        before, self.state = self.state, after
        await self._settle()
        asked = [g for g, pending in enumerate(before.gw.pending) if pending]
        for g in asked:
            inbox = after.groups[g].inbox
            if inbox is None:  # a request of somebody who has gone
                continue
            assert self._asks[g].done(), f"the request of g{g} is held: {self.gateway.quorums.waits_for}"
            view, grant = inbox[0], self._asks.pop(g).result()
            self._seats.pop(g)
            assert grant.kind is Kind(view.kind), (grant, view)
            if grant.kind is Kind.RELEASE:
                continue
            self._ids.setdefault(view.att, grant.attempt)
            self._ids.setdefault(view.qid, grant.quorum_id)
            assert (self._ids[view.att], self._ids[view.qid]) == (grant.attempt, grant.quorum_id)
            assert (grant.quorum_id == grant.attempt) == (view.qid == view.att)
            assert [(m.group, m.incarnation) for m in grant.members] == [(f"g{h}", i) for h, i in view.members]
            assert grant.up_to_date == tuple(f"g{h}" for h in view.current)
            assert grant.current == self._real(view.lineage)
            assert grant.restore == (None if view.restore is None else self._real(lineage(view.restore)))
        assert self.gateway.state.granted == self._real(after.gw.granted)
        assert self.gateway.state.last_quorum_id == self._ids[after.gw.lastq]

    def compare(self) -> None:
        """What both know, and what a group that is in an attempt may hear."""
        gw = self.state.gw
        if not gw.up or gw.ended:
            return
        stored = self.gateway.state
        for g, floor in enumerate(gw.floor):
            assert stored.floors.get(f"g{g}", 0) >= floor or floor == 1, f"g{g} is buried below {floor}"
        assert not any(task.done() for task in self._asks.values()), "answered what the model holds"
        for g, grp in enumerate(self.state.groups):
            in_attempt = grp.phase in (SEATED, HEALING, POSTED) and grp.view.att == gw.ctr
            if not in_attempt or grp.inc < gw.floor[g] or grp.view.members != gw.known:
                continue
            notice = self.gateway.notice(Participant(f"g{g}", grp.inc))
            dead = {(dead.group, dead.incarnation) for dead in notice.dead}
            heard = any((f"g{h}", i) in dead for h, i in grp.view.members) or self._ids[grp.view.att] in notice.over
            assert heard == self.model.lost(self.state, grp), (notice, grp)

    async def go(self, draw: Any, *, events: int) -> int:
        """Walk at random. Returns the number of grants."""
        grants = 0
        for _ in range(events):
            if self.state.gw.ended:
                break
            found = list(successors(self.model, self.state))
            learned = [(label, new) for label, _, new in found if label and label.startswith("gateway learns")]
            grant = next(((label, new) for label, _, new in found if (label or "").startswith("gateway grants")), None)
            if learned:
                self.path.append(learned[0][0])
                await self.take(*learned[0])
            elif grant is not None:
                self.path.append(grant[0])
                await self.granted(grant[1])
                grants += 1
            elif found:
                label, _, new = draw.choice(found)
                self.path.append(label)
                await self.take(label, new)
            else:
                break
            self._forget()
            if not any(label.startswith(("gateway learns", "gateway grants")) for label in self._next()):
                self.compare()
        await self.crash()
        return grants

    def _next(self) -> list[str]:
        if self.state.gw.ended:
            return []
        return [label or "" for label, _, _ in successors(self.model, self.state)]

    def _forget(self) -> None:
        """Requests that the model no longer holds have been denied."""
        for g in [g for g in self._asks if not self.state.gw.pending[g]]:
            assert self._asks[g].done(), f"the request of g{g} is still held"
            del self._asks[g], self._seats[g]
