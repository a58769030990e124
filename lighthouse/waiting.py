"""Who waits for the next quorum? The requests that are open at the gateway, and the answers they get.

A group has asked once its claim (phalanx.Control.Ask) and its torchft quorum request are both here. A request that is
cancelled, or whose connection breaks, is gone from here at once. Used by the gateway on its event loop; no threads.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from configs.protocol import Claim, Grant
from configs.words import Lineage
from lighthouse.decide import Request
from lighthouse.protos import torchft_pb2
from lighthouse.state import Participant


@dataclasses.dataclass(frozen=True)
class Refused:
    """Not now, or not at all."""

    reason: str
    quorum_lost: bool = False


@dataclasses.dataclass(frozen=True)
class Buried:
    """This incarnation is lost, for ever."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """The run has reached its recorded end."""

    lineage: Lineage


@dataclasses.dataclass(frozen=True)
class Stopping:
    """The lighthouse goes; the next one will answer."""


@dataclasses.dataclass(frozen=True)
class LookAgain:
    """Nobody current is alive any more: ask once more, with what the disk shows now."""


Denial = Refused | Buried | Ended | Stopping | LookAgain
_T = TypeVar("_T")


@dataclasses.dataclass(eq=False)
class _Ask:
    request: Request
    answer: asyncio.Future[Grant | Denial]


@dataclasses.dataclass(eq=False)
class _Seat:
    member: torchft_pb2.QuorumMember
    answer: asyncio.Future[torchft_pb2.Quorum | Denial]


class Waiting:
    """The open requests. ``changed`` is called whenever one comes or goes by itself."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._asks: dict[Participant, _Ask] = {}
        self._seats: dict[Participant, list[_Seat]] = {}

    async def ask(self, claim: Claim, *, now: float) -> Grant | Denial:
        """Wait for the grant. A second request of the same incarnation takes the place of the first."""
        ask = _Ask(Request(claim=claim, since=now), asyncio.get_running_loop().create_future())
        who = ask.request.who
        before = self._asks.get(who)
        if before is not None:
            _answer(before.answer, Refused("the same incarnation has asked again"))
        self._asks[who] = ask
        self._changed()
        try:
            return await ask.answer
        finally:
            if self._asks.get(who) is ask:  # cancelled
                del self._asks[who]
                self._changed()

    async def seat(self, who: Participant, member: torchft_pb2.QuorumMember) -> torchft_pb2.Quorum | Denial:
        """Wait for torchft's quorum. A manager that tries again holds several requests; all get the same answer."""
        seat = _Seat(member, asyncio.get_running_loop().create_future())
        self._seats.setdefault(who, []).append(seat)
        self._changed()
        try:
            return await seat.answer
        finally:
            left = self._seats.get(who)
            if left is not None and seat in left:  # cancelled
                left.remove(seat)
                if not left:
                    del self._seats[who]
                self._changed()

    @property
    def asking(self) -> tuple[Participant, ...]:
        return tuple(self._asks)

    def asked(self, who: Participant) -> bool:
        """Whether both requests of an incarnation are here."""
        return who in self._asks and who in self._seats

    def complete(self, living: Collection[Participant]) -> tuple[Request, ...]:
        """The requests of those who have asked completely and live."""
        return tuple(ask.request for who, ask in self._asks.items() if who in self._seats and who in living)

    def incomplete(self, living: Collection[Participant]) -> Iterator[str]:
        """What is missing before an open claim counts, for people to read."""
        for who in self._asks:
            if who not in self._seats:
                yield f"{who} has not sent its torchft quorum request"
            elif who not in living:
                yield f"{who} holds no Watch stream"

    def waits(self, *, now: float) -> dict[Participant, float]:
        """Seconds that each open claim has waited."""
        return {who: now - ask.request.since for who, ask in self._asks.items()}

    def members(self) -> dict[Participant, torchft_pb2.QuorumMember]:
        """The newest torchft request of each incarnation."""
        return {who: seats[-1].member for who, seats in self._seats.items()}

    def grant(self, who: Participant, grant: Grant, quorum: torchft_pb2.Quorum | Denial) -> None:
        """Answer both requests of a group."""
        ask = self._asks.pop(who, None)
        if ask is not None:
            _answer(ask.answer, grant)
        self._answer_seats(who, quorum)

    def deny(self, who: Participant, denial: Denial) -> None:
        """Answer whatever is open of a group with a denial."""
        ask = self._asks.pop(who, None)
        if ask is not None:
            _answer(ask.answer, denial)
        self._answer_seats(who, denial)

    def ask_again(self, who: Participant) -> None:
        """Send a claim back; torchft's request may stay."""
        ask = self._asks.pop(who, None)
        if ask is not None:
            _answer(ask.answer, LookAgain())

    def deny_all(self, denial: Denial) -> None:
        for who in {*self._asks, *self._seats}:
            self.deny(who, denial)

    def _answer_seats(self, who: Participant, answer: torchft_pb2.Quorum | Denial) -> None:
        for seat in self._seats.pop(who, ()):
            _answer(seat.answer, answer)


def _answer(future: asyncio.Future[_T], answer: _T) -> None:
    if not future.done():  # done: cancelled in this very turn of the loop
        future.set_result(answer)
