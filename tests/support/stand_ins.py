"""What stands around one rank in tests: a scripted seat, text, a disk and a state server that remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from checkpointing.state import Clocks
from configs.protocol import Grant, Offer
from configs.words import DiscardReason, Lineage
from replica_groups.plan import BatchShape
from replica_groups.seat import Seating, Standing
from replica_groups.signals import AttemptOver
from tests.support.grants import grant
from tests.support.sums import Posted
from trainer.loss import IGNORED

SHAPE = BatchShape(microbatches=4, samples=2, seq_len=8)
WORDS = 13


class Text:
    """The same microbatch for the same number; ``blank`` are positions without a label, by microbatch."""

    def __init__(self) -> None:
        self.blank: dict[int, int] = {}
        self.asked: list[int] = []
        self.plans: list[list[int]] = []

    def plan(self, microbatches: list[int]) -> None:
        self.plans.append(list(microbatches))

    def get(self, microbatch: int) -> Any:
        self.asked.append(microbatch)
        generator = torch.Generator().manual_seed(microbatch)
        rows = torch.randint(WORDS, (SHAPE.samples, SHAPE.seq_len + 1), generator=generator)
        labels = rows[:, 1:].clone()
        labels.view(-1)[: self.blank.get(microbatch, 0)] = IGNORED
        return SimpleNamespace(tokens=rows[:, :-1].clone(), labels=labels)


def the_same(slots: torch.Tensor) -> None:
    """Every group holds what this one holds."""
    slots[1:] = slots[0]


class Seat:
    """A seat that grants what it is told to, and loses the attempt where it is told to."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.lose_at: str | None = None
        """connect, sums, summary or vote: where the next attempt is lost."""
        self.alter: Callable[[torch.Tensor], None] | None = None
        """What the other groups add to the next summary."""
        self.others_hold: Callable[[torch.Tensor], None] | None = the_same
        """Fills the sentinel's slots of the other groups, by participant rank; this one's is the first."""
        self.add_from: Posted | None = None
        """What another group has posted in the same attempt, all of it."""
        self.standings: list[Standing] = []
        self.abandoned = 0
        self.channel = Posted()
        self.fellow_lost = False
        """Another rank of the group is told of a loss before this one."""
        self.votes: list[bool] = []
        self._added = 0

    def agree(self, mine: Standing) -> Standing:
        self.standings.append(mine)
        return mine

    def quorum(self, standing: Standing, *, disk: Callable[[], Offer] = Offer) -> Seating:
        number = len(self.standings)
        made = self.grants.pop(0) if self.grants else grant(attempt=number, running=1, current=standing.lineage)
        return Seating(grant=made, rank=0, store_address="")

    def connect(self, seating: Seating) -> Posted:
        self._lose("connect")
        self.channel, self._added = Posted(), 0
        return self.channel

    def finish(self, seating: Seating, channel: Posted) -> None:
        last = channel.buffers[-1] if channel.buffers else torch.empty(0)
        summary = last.numel() == 5 + seating.size and last.dtype == torch.int64
        if self.others_hold is not None and (summary or last.ndim == 2):
            self.others_hold(last[5:] if summary else last)
        if self.add_from is not None:
            for mine, other in zip(channel.buffers[self._added :], self.add_from.buffers[self._added :], strict=False):
                mine += other
            self._added = len(channel.buffers)
        if summary:
            self._lose("summary")
            if self.alter is not None:
                self.alter(last)
        else:
            self._lose("sums")

    def together(self, over: AttemptOver | None) -> None:
        if over is not None:
            raise over
        if self.fellow_lost:
            raise AttemptOver(DiscardReason.PEER_LOST, "another rank was told")

    def vote(self, *, step: int, complete: bool) -> bool:
        self.votes.append(complete)
        lost, self.lose_at = self.lose_at == "vote", None if self.lose_at == "vote" else self.lose_at
        return complete and not lost

    def abandon(self) -> None:
        self.abandoned += 1

    def _lose(self, where: str) -> None:
        if self.lose_at == where:
            self.lose_at = None
            raise AttemptOver(DiscardReason.PEER_LOST, f"lost at {where}")


class Disk:
    """A disk that remembers what it was told; ``held`` is what can be loaded."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.checksums: list[int | None] = []
        """One for each confirm."""
        self.found: tuple[Any, ...] = ()
        self.held: dict[Path, tuple[Mapping[str, torch.Tensor], Clocks]] = {}
        self.during: Callable[[], None] = lambda: None
        self.saves: Callable[[int], bool] = lambda step: True
        """Whether any participant may save a step."""

    def offered(self) -> tuple[Any, ...]:
        self.told.append(("offered",))
        return self.found

    def seen(self) -> tuple[Any, ...]:
        return self.found

    def load(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> Clocks:
        self.during()
        saved, clocks = self.held[path]
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
        return clocks

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        clocks: Clocks,
        *,
        rank: int,
        size: int,
        holds: bool = True,
        holders: int = 1,
    ) -> bool:
        self.told.append(("save", clocks.lineage, rank, size))
        return self.saves(clocks.step)

    def save_last(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None:
        self.told.append(("save_last", clocks.lineage))

    def confirm(self, lineage: Lineage, *, checksum: int | None = None) -> None:
        self.told.append(("confirm", lineage))
        self.checksums.append(checksum)

    def orphan(self, lineage: Lineage) -> None:
        self.told.append(("orphan", lineage))

    def fence(self, fences: Sequence[Lineage]) -> None:
        if fences:
            self.told.append(("fence", *fences))

    def drain(self) -> None:
        self.told.append(("drain",))


class Server:
    """A state server that only remembers its windows."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self.is_open = False

    def open(self, **window: Any) -> None:
        self.windows.append(window)
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
