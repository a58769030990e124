"""Who holds this rank's state, and may it be used?

The one owner of the clocks and of the void mark. State enters here from the seed, from disk or from peers, and leaves
through the serving window and the checkpoints. From the first byte that replaces it until every rank of the group has
verified every digest the state is void: it computes nothing, serves nobody and is never up to date.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from checkpointing.digest import state_digest
from checkpointing.errors import NothingThere, TransferError
from checkpointing.resume import Found, decide_resume
from checkpointing.server import StateServer
from checkpointing.state import Clocks
from configs.protocol import Grant, Kind, Offer
from configs.run_folder import EventSink
from configs.words import Exit, ExitRequest, Lineage
from replica_groups.channel import Beside
from replica_groups.seat import Seating
from replica_groups.signals import AttemptOver, Signals
from trainer.phases import Phase, Phases

Fetch = Callable[..., Any]
PROGRESS_S = 1.0


class Disk(Protocol):
    """The checkpoints of this run, as one rank sees them."""

    def offered(self) -> tuple[Found, ...]: ...

    def seen(self) -> tuple[Found, ...]: ...

    def load(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> Clocks: ...

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        clocks: Clocks,
        *,
        rank: int,
        size: int,
        holds: bool,
        holders: int,
    ) -> bool: ...

    def save_last(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None: ...

    def confirm(self, lineage: Lineage, *, checksum: int | None = None) -> None: ...

    def orphan(self, lineage: Lineage) -> None: ...

    def fence(self, fences: Sequence[Lineage]) -> None: ...

    def drain(self) -> None: ...


@dataclass(kw_only=True)
class StateKeeper:
    """The state of one rank."""

    group: str
    rank: int
    clocks: Clocks
    """Of scratch at first; replaced by every commit, heal and restore."""
    tensors: dict[str, torch.Tensor]
    from_seed: Callable[[], str | None]
    """Makes the tensors what the seed says they are at step 0; the folder that gave their weights, if one did."""
    scratch: Clocks
    disk: Disk
    server: StateServer
    fetch: Fetch
    digest_group: dist.ProcessGroup
    beside: Beside
    signals: Signals
    phases: Phases
    failpoint: Callable[..., None]
    sink: EventSink
    patience_s: float
    """How long a healer whose sources are gone waits to be told that the attempt is over."""
    export: Callable[[Mapping[str, torch.Tensor], Clocks], None] | None = None
    """What the end of the run leaves beside the checkpoint, if anything. Collective."""
    sentinel: bool = True
    """A confirmed state is published once its holders have compared all of it."""
    void: bool = True
    disputed: bool = False
    """With void: the participants hold different states of this lineage, and none has a majority."""
    whole: bool = True
    """All of this state is to be compared, for somebody may publish it; the same in all that hold it."""
    unconfirmed: Lineage | None = None
    unpublished: Lineage | None = None
    """Confirmed, and not yet compared."""
    _incoming: _Incoming | None = None
    """A state that was received, until all ranks of the group have it."""

    def on_disk(self) -> Offer:
        """What this group can bring if nobody current is alive. Disk is not looked at while the state is good. Raises
        CheckpointError."""
        if not self.void or self.rank:
            return Offer()
        try:
            return Offer(disk=tuple(found.lineage for found in self.disk.offered()))
        except NothingThere as error:
            print(f"on disk: {error.reason}")
            return Offer(unmet=error.reason)

    def settle(self, grant: Grant) -> None:
        """A quorum confirms my last commit, if it seats me with it, or else orphans it. What is confirmed is published
        at once if nobody else holds it; otherwise once the holders agree on it."""
        mine, self.unconfirmed = self.unconfirmed, None
        holds = grant.restore is None and not self.void
        if mine is not None:
            if holds and grant.current == mine:
                self.unpublished = mine
            else:
                self.disk.orphan(mine)
                self.sink("orphaned", step=mine.step, lineage=str(mine))
        waiting = self.unpublished
        if waiting is None:
            return
        if not holds or grant.current != waiting:
            self.unpublished = None
            self.disk.orphan(waiting)
        elif not self.sentinel or len(grant.up_to_date) == 1:
            self.agreed(None)

    def agreed(self, checksum: int | None) -> None:
        """Those who hold the current state agree on it. ``checksum`` is that of all of it, if it was compared."""
        if self.unpublished is not None:
            lineage, self.unpublished = self.unpublished, None
            self.disk.confirm(lineage, checksum=checksum)

    def distrust(self, *, disputed: bool) -> None:
        """My state is not what others of its lineage hold: it must not be used. What I saved of it goes."""
        self.void, self.disputed = True, disputed
        if self.unpublished is not None:
            lineage, self.unpublished = self.unpublished, None
            self.disk.orphan(lineage)

    def take(self, seating: Seating) -> None:
        """Hold the current state: from the seed or from disk when nobody current is alive, else from peers. Raises
        AttemptOver; the group then decides together what becomes of the attempt."""
        grant = seating.grant
        self._incoming = None
        if self.group in grant.up_to_date:
            self.restore_if_asked(grant)
            if grant.healing:
                self.server.open(
                    attempt=grant.attempt,
                    quorum_id=grant.quorum_id,
                    lineage=grant.current,
                    tensors=self.tensors,
                    clocks=self.clocks,
                )
        else:
            self.phases.enter(Phase.HEAL)
            self._heal(grant)
        self.phases.enter(Phase.OTHER)

    def taken(self, seating: Seating) -> None:
        """Every rank of the group holds what it took: the state is good. Collective after a heal."""
        if self._incoming is not None:
            received, self._incoming = self._incoming, None
            self.clocks = received.clocks
            total = torch.tensor([received.bytes], dtype=torch.int64)
            dist.all_reduce(total)
            step = self.clocks.step
            self.sink("heal", step=step, sources=received.sources, bytes=int(total), seconds=received.seconds)
            for source, tensors in received.differing.items():
                self.sink("divergence", step=step, groups=sorted([*received.sources, source]), tensors=list(tensors))
        if self.clocks.lineage != seating.grant.current:
            raise ExitRequest(Exit.INCARNATION_OVER, f"holds {self.clocks.lineage}, granted {seating.grant.current}")
        self.void = self.disputed = False
        self.disk.fence(seating.grant.fences)  # not before: where nothing else can be loaded all shall stay as it was

    def close_window(self) -> None:
        """Before the vote: whatever a healer still wants, the state may be written from now on."""
        self.server.close()

    def restore_if_asked(self, grant: Grant) -> None:
        """Take the state the gateway fixed for all, when nobody current is alive."""
        if grant.restore is None:
            return
        began = time.monotonic()
        resume, reason = decide_resume(
            current=grant.current, healing=False, restore=grant.restore, found=self.disk.seen()
        )
        self.void = True
        weights: str | None = None
        if resume.path is None:
            weights = self.from_seed()
            self.clocks = self.scratch
        else:
            self.clocks = self.disk.load(resume.path, self.tensors)
        self.unconfirmed = None
        self.whole = True
        self.sink(
            "restore",
            step=resume.lineage.step,
            lineage=str(resume.lineage),
            source=resume.source.value,
            reason=reason,
            **({"weights": weights} if weights else {}),
            seconds=time.monotonic() - began,
        )
        if grant.kind is not Kind.TRAIN:
            self.void = self.disputed = False

    def committed(self, lineage: Lineage) -> None:
        """The clocks have moved; the commit is provisional."""
        self.unconfirmed = lineage

    def save(self, *, rank: int, size: int, holds: bool, holders: int) -> None:
        """Stage a checkpoint of the last commit, if it is the turn of participant ``rank`` of ``size``. ``holders``
        groups had the state before that commit; this one too if it ``holds``."""
        self.whole = self.disk.save(self.tensors, self.clocks, rank=rank, size=size, holds=holds, holders=holders)

    def save_last(self) -> None:
        """Publish the confirmed state before the group leaves. Raises CheckpointError."""
        self.disk.save_last(self.tensors, self.clocks)

    def export_last(self) -> None:
        """After the last state of the run is published. Collective. Raises CheckpointError."""
        if self.export is not None:
            self.export(self.tensors, self.clocks)

    def digest(self) -> str:
        """The state's digest. Collective over the group."""
        return state_digest(self.tensors, self.clocks, group=self.digest_group)

    def _heal(self, grant: Grant) -> None:
        began = time.monotonic()
        sources = _in_turn(grant, group=self.group, rank=self.rank)
        if not sources:
            raise ExitRequest(Exit.INCARNATION_OVER, f"nobody serves {grant.current}")
        stopped = False

        def first_byte() -> None:
            self.void = True

        future: Future[Any] = self.beside.run(
            self.fetch,
            [address for _, address in sources],
            attempt=grant.attempt,
            quorum_id=grant.quorum_id,
            lineage=grant.current,
            tensors=self.tensors,
            on_first_byte=first_byte,
            stop=lambda: stopped,
            progress=Progress(self.sink, step=grant.current.step),
        )
        try:
            received = self.signals.wait(future, over=lambda: self.signals.lost(grant))
        except AttemptOver:
            stopped = True
            future.exception()  # it must have stopped writing before this state is used for anything else
            raise
        except TransferError as error:
            self.signals.pause_until(lambda: self.signals.lost(grant) is not None, self.patience_s)
            over = self.signals.lost(grant)
            if over is not None:
                raise over from error
            raise ExitRequest(Exit.INCARNATION_OVER, f"void, and no source is left: {error}") from error
        self.void = True
        self.unconfirmed = None
        by_address = {address: group for group, address in sources}
        self._incoming = _Incoming(
            clocks=received.clocks,
            sources=[by_address[address] for address in received.sources],
            differing={by_address[address]: names for address, names in received.differing.items()},
            bytes=received.bytes,
            seconds=time.monotonic() - began,
        )


@dataclass(frozen=True, kw_only=True)
class _Incoming:
    """What a heal brought to this rank."""

    clocks: Clocks
    sources: list[str]
    """Groups."""
    differing: Mapping[str, tuple[str, ...]]
    """Groups that hold another state of the same lineage, each with the tensors that differ."""
    bytes: int
    seconds: float


class Progress:
    """Tells of a long heal about once a second. Called from several threads."""

    def __init__(
        self,
        sink: EventSink,
        *,
        step: int,
        every_s: float = PROGRESS_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._step = step
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._told = clock()

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` bytes of this rank have arrived."""
        with self._lock:
            now = self._clock()
            if now - self._told < self._every_s or done == total:  # the end has an event of its own
                return
            self._told = now
        self._sink("heal_progress", step=self._step, bytes=done, total=total)


def _in_turn(grant: Grant, *, group: str, rank: int) -> list[tuple[str, str]]:
    """(group, address) of rank ``rank`` of every source; healers start at different ones."""
    addresses = {m.group: m.transfer[rank] for m in grant.members if rank < len(m.transfer)}
    sources: Sequence[str] = [g for g in grant.up_to_date if g in addresses]
    if not sources:
        return []
    first = grant.healing.index(group) % len(sources)
    return [(g, addresses[g]) for g in [*sources[first:], *sources[:first]]]
