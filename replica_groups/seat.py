"""How does a group take its seat in an attempt, and get out of one that will not end?

The seat is one rank's door to the other groups: agree with its fellows, ask for a quorum, connect, vote. It stands on
torchft's coordination servers and clients, not on its Manager. Whatever blocks runs beside the main thread, which waits
for "done" or for a reason why the attempt is over.

Rank 0 speaks to the gateway and passes what it hears to its fellows over their lifelines; every rank then checks that
torchft's quorum and the gateway's grant say the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torchft.coordination import ManagerClient, ManagerServer

from configs.protocol import Claim, Grant, Kind, Notice, Offer, QuorumLost, Unreachable, replica_id
from configs.words import RUNNING_BITS, DiscardReason, Exit, ExitRequest, Lineage
from replica_groups.channel import Beside, Channel, Reaper, connect
from replica_groups.lifelines import Hub
from replica_groups.signals import AttemptOver, Signals

GRANT = TypeAdapter(Grant)
NOTICE = TypeAdapter(Notice)
_RETRY_S = 0.1


class Coordinator(Protocol):
    """What rank 0 needs of the lighthouse's client."""

    def ask(self, claim: Claim) -> Grant: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """What the ranks of a group must agree on before they ask."""

    lineage: Lineage
    void: bool
    drain: bool
    finished: bool
    fresh: bool
    disputed: bool = False
    """The groups differ and none has a majority: nobody's state of this lineage may be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seating:
    """The answer: the grant, and where torchft says to meet."""

    grant: Grant
    rank: int
    store_address: str

    @property
    def size(self) -> int:
        return len(self.grant.members)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Longest waits, seconds. Derived from the config; none of them decides who lives."""

    quorum_s: float
    connect_s: float
    collective_s: float
    vote_s: float


class Seat:
    """One rank's seat."""

    def __init__(
        self,
        *,
        group: str,
        incarnation: int,
        rank: int,
        world: int,
        backend: str,
        manager_address: str,
        signals: Signals,
        beside: Beside,
        limits: Limits,
        coordinator: Coordinator | None,
        hub: Hub | None,
        failpoint: Callable[..., None],
        transfer: tuple[str, ...] = (),
    ) -> None:
        self.group = group
        self.incarnation = incarnation
        self._rank = rank
        self._world = world
        self._backend = backend
        self._signals = signals
        self._beside = beside
        self._limits = limits
        self._coordinator = coordinator
        self._hub = hub
        self._failpoint = failpoint
        self._transfer = transfer
        self._client = ManagerClient(manager_address, datetime.timedelta(seconds=limits.connect_s))
        self._reaper = Reaper()
        self._channel: Channel | None = None
        self._last_attempt = 0

    @property
    def attempt(self) -> int:
        """The last granted attempt; 0 before the first."""
        return self._last_attempt

    # -- agree -----------------------------------------------------------------------------------------------------

    def agree(self, mine: Standing) -> Standing:
        """Gather every rank's standing. Collective over the group.

        Ranks that differ in lineage or void end the incarnation: a half-healed group must not train. A drain or a
        broken channel of one rank is everybody's.
        """
        row = [mine.lineage.step, mine.lineage.quorum_id, mine.void, mine.drain, mine.finished, mine.fresh]
        row.append(mine.disputed)
        rows = [torch.zeros(len(row), dtype=torch.int64) for _ in range(self._world)]
        dist.all_gather(rows, torch.tensor([int(x) for x in row], dtype=torch.int64))
        answers = [tuple(int(x) for x in r) for r in rows]
        if len({(*a[:3], a[4], a[6]) for a in answers}) > 1:
            raise ExitRequest(Exit.INCARNATION_OVER, f"the ranks of {self.group} disagree about their state: {answers}")
        return dataclasses.replace(mine, drain=any(a[3] for a in answers), fresh=any(a[5] for a in answers))

    # -- quorum ----------------------------------------------------------------------------------------------------

    def quorum(self, standing: Standing, *, disk: Callable[[], Offer] = Offer) -> Seating:
        """The quorum of the next attempt, complete before any compute; the same on every rank of the group. ``disk``
        says what this group can bring, each time that rank 0 asks.

        Raises Buried, Refused and Ended as the gateway says. It never raises AttemptOver: ranks hear of a loss at
        different times, and must leave an attempt together.
        """
        joined = self._beside.run(self._torchft_quorum, standing.lineage.step)
        if self._coordinator is None:
            grant = self._told_grant(joined)
        else:
            grant = self._ask_until_answered(standing, disk, joined)
        self._last_attempt = grant.attempt
        if grant.kind is Kind.RELEASE:
            return Seating(grant=grant, rank=-1, store_address="")
        result = joined.result()
        names = [m.replica_id for m in grant.members]
        if result.quorum_id != grant.quorum_id or list(result.replica_ids) != names:
            raise ExitRequest(
                Exit.INCARNATION_OVER,
                f"torchft answered {result.quorum_id} {result.replica_ids}, granted was {grant.quorum_id} of {names}",
            )
        return Seating(grant=grant, rank=result.replica_rank, store_address=result.store_address)

    def _ask_until_answered(self, standing: Standing, disk: Callable[[], Offer], joined: Future[Any]) -> Grant:
        """Rank 0: the gateway answers the claim and torchft's request. One that is replaced between the two is asked
        again; torchft's manager repeats its own request by itself."""
        while True:
            grant = self._granted(standing, disk)
            if grant.kind is Kind.RELEASE:
                return grant
            self._signals.wait_until_either(joined, functools.partial(self._signals.restarted, grant))
            if joined.done():
                return grant

    def _told_grant(self, joined: Future[Any]) -> Grant:
        """Another rank: the grant that goes with torchft's answer, as rank 0 passes it on."""
        after = self._last_attempt
        self._signals.wait_until_either(joined, lambda: self._signals.released(after) is not None)
        released = self._signals.released(after)
        return released or self._signals.next_grant(after=after, quorum_id=int(joined.result().quorum_id))

    def _torchft_quorum(self, step: int) -> Any:
        return self._client._quorum(
            group_rank=self._rank,
            step=step,
            checkpoint_metadata="",
            shrink_only=False,
            timeout=datetime.timedelta(seconds=self._limits.quorum_s),
            commit_failures=0,
            init_sync=False,
        )

    def _granted(self, standing: Standing, disk: Callable[[], Offer]) -> Grant:
        claim = Claim(
            group=self.group,
            incarnation=self.incarnation,
            lineage=standing.lineage,
            void=standing.void,
            drain=standing.drain,
            finished=standing.finished,
            fresh=standing.fresh,
            disputed=standing.disputed,
            transfer=self._transfer,
        )
        asked: Future[Grant] = self._beside.run(self._ask, claim, disk)
        grant = self._signals.wait(asked, over=lambda: None)
        if grant.quorum_id >> RUNNING_BITS < self._signals.epoch:
            raise ExitRequest(Exit.INCARNATION_OVER, f"a lighthouse older than epoch {self._signals.epoch} answered")
        if self._hub is not None:
            self._hub.broadcast({"grant": GRANT.dump_python(grant, mode="json")})
        return grant

    def _ask(self, claim: Claim, disk: Callable[[], Offer]) -> Grant:
        assert self._coordinator is not None
        while True:
            offer = disk()
            try:
                return self._coordinator.ask(dataclasses.replace(claim, disk=offer.disk, needs_state=bool(offer.unmet)))
            except QuorumLost as error:
                if offer.unmet:
                    raise ExitRequest(Exit.CHECKPOINT, f"{offer.unmet}; {error}") from error
                raise
            except Unreachable:
                # Groups loop until the lighthouse is back, or wants to know what the disk shows now.
                self._signals.pause(_RETRY_S)

    # -- connect ---------------------------------------------------------------------------------------------------

    def connect(self, seating: Seating) -> Channel:
        """The channel of this quorum id: the last one when the id is the same, else a new one."""
        grant = seating.grant
        if self._channel is not None and self._channel.quorum_id == grant.quorum_id and not self._channel.broken:
            return self._channel
        self.abandon()
        self._failpoint("configure")
        future: Future[Channel] = self._beside.run(
            connect,
            backend=self._backend,
            store_address=seating.store_address,
            replica_id=replica_id(self.group, self.incarnation),
            rank=seating.rank,
            size=seating.size,
            quorum_id=grant.quorum_id,
            group_rank=self._rank,
            group_size=self._world,
            timeout_s=self._limits.connect_s,
        )
        try:
            self._channel = self._signals.wait(future, over=lambda: self._signals.lost(grant))
        except RuntimeError as error:
            told = self._signals.lost(grant)
            raise told or AttemptOver(DiscardReason.COLLECTIVE_ERROR, f"cannot connect to a group: {error}") from error
        return self._channel

    def finish(self, seating: Seating, channel: Channel) -> None:
        """Wait until everything posted on ``channel`` is summed. Raises AttemptOver on a loss or an error."""
        self.check(seating)
        if channel.process_group is None:
            return
        try:
            self._signals.wait(self._beside.run(channel.finish), over=lambda: self._signals.lost(seating.grant))
        except RuntimeError as error:
            told = self._signals.lost(seating.grant)
            raise told or AttemptOver(DiscardReason.COLLECTIVE_ERROR, str(error)) from error

    def check(self, seating: Seating) -> None:
        """Raise AttemptOver if the attempt is known to be over."""
        reason = self._signals.lost(seating.grant)
        if reason is not None:
            raise reason

    def abandon(self) -> None:
        """Leave the channel to the reaper. The next quorum must have a fresh id if the members stay the same."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.process_group is not None:
            self._reaper.abandon(channel, operation_timeout_s=self._limits.collective_s)

    def together(self, over: AttemptOver | None) -> None:
        """Be over, or go on, together with all ranks of the group, which hear of a loss at different times. Collective.

        Raises ``over``, or AttemptOver for another rank's reason.
        """
        votes = torch.tensor([over is not None], dtype=torch.int64)
        dist.all_reduce(votes)
        if over is not None:
            raise over
        if int(votes):
            raise AttemptOver(DiscardReason.PEER_LOST, "another rank of this group was told that the attempt is over")

    # -- vote ------------------------------------------------------------------------------------------------------

    def vote(self, *, step: int, complete: bool) -> bool:
        """Whether all ranks of this group hold the summary. Groups can differ here; lineage makes that harmless.

        After the summary a loss heard of no longer discards, so nothing but the group's own end leaves this wait.
        """
        future = self._beside.run(
            self._client.should_commit, self._rank, step, complete, datetime.timedelta(seconds=self._limits.vote_s)
        )
        return bool(self._signals.wait(future, over=lambda: None))


def serve_manager(
    *, group: str, incarnation: int, lighthouse: str, host: str, store_address: str, world: int, limits: Limits
) -> ManagerServer:
    """torchft's manager of this group, on rank 0. It asks the lighthouse again every 100 ms while that is away, for the
    wait between its tries is the quorum timeout divided by their number."""
    return ManagerServer(
        replica_id=replica_id(group, incarnation),
        lighthouse_addr=lighthouse,
        hostname=host,
        bind=f"{host}:0",
        store_addr=store_address,
        world_size=world,
        heartbeat_interval=datetime.timedelta(seconds=3600),  # the gateway does not live by heartbeats
        connect_timeout=datetime.timedelta(seconds=limits.connect_s),
        quorum_retries=int(limits.quorum_s / _RETRY_S),
    )
