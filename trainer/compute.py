"""Forward and backward of one participant's share, and the sums every participant needs to know.

The loss is divided by the planned token count, a constant, before backward. Randomness is a function of (seed, step,
microbatch, rank), never of history; the generator's own state is put back, so an attempt that is discarded has moved
nothing. Every microbatch is checked on the device, without a sync.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from configs.words import DiscardReason
from replica_groups.channel import Channel
from replica_groups.plan import Plan
from replica_groups.reduce import GradientReducer
from replica_groups.seat import Seat, Seating
from replica_groups.signals import AttemptOver
from trainer.loss import IGNORED, token_loss
from trainer.phases import Phase, Phases

LOSS_BITS = 44
_HEADROOM_BITS = 62


class Batch(Protocol):
    """One rank's rows of a microbatch."""

    tokens: torch.Tensor
    labels: torch.Tensor


class Loader(Protocol):
    """Where microbatches come from."""

    def plan(self, microbatches: list[int]) -> None: ...

    def get(self, microbatch: int) -> Batch: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What every participant knows once the whole gradient is everywhere."""

    flagged: bool
    loss_sum: float
    """Sum over the step of token losses, divided by the planned token count."""
    tokens: int
    """Tokens with a label."""
    checksums: tuple[int, ...] = ()
    """Of each participant's state, by participant rank; 0 where it was not looked at."""


class Compute:
    """The compute and reduce phases of one rank."""

    def __init__(
        self,
        *,
        group: str,
        rank: int,
        seed: int,
        model: nn.Module,
        device: torch.device,
        loader: Loader,
        reducer: GradientReducer,
        seat: Seat,
        phases: Phases,
        failpoint: Callable[..., None],
        at_microbatch: Callable[[int | None], None],
    ) -> None:
        self._group = group
        self._rank = rank
        self._seed = seed
        self._model = model
        self._device = device
        self._loader = loader
        self._reducer = reducer
        self._seat = seat
        self._phases = phases
        self._failpoint = failpoint
        self._at_microbatch = at_microbatch
        self._sums = torch.zeros(3, dtype=torch.int64, device=device)

    def share(self, plan: Plan, *, step: int, channel: Channel) -> None:
        """Forward and backward of every microbatch of my share; the last backward overlaps the reduction.

        Always runs to its end: the other ranks of the group wait for it in FSDP's collectives.
        """
        share = plan.shares[self._group]
        self._reducer.begin(channel)
        self._sums = torch.zeros(3, dtype=torch.int64, device=self._device)
        with _own_randomness(self._device):
            for index, microbatch in enumerate(share):
                self._at_microbatch(microbatch - plan.first)
                self._phases.enter(Phase.DATA)
                self._failpoint("data")
                batch = self._loader.get(microbatch)
                self._phases.enter(Phase.COMPUTE)
                torch.manual_seed(random_seed(self._seed, step, microbatch, self._rank))
                self._failpoint("forward")
                self._reducer.expect(last=index == len(share) - 1)
                self._one(batch, plan)
        self._at_microbatch(None)
        self._reducer.post_rest()

    def rehearse(self, *, rows: int, seq_len: int, vocabulary: int) -> None:
        """One forward and backward on a dummy batch: compiles, connects, allocates, finds errors. Moves nothing.

        The batch is a function of (seed, rank), so whoever watches the gradient sees the same in every group.
        """
        seed = random_seed(self._seed, 0, -1, self._rank)
        drawn = torch.randint(vocabulary, (rows, seq_len), generator=torch.Generator().manual_seed(seed))
        tokens = drawn.to(self._device)
        with _own_randomness(self._device):
            torch.manual_seed(seed)
            (token_loss(self._model(tokens), tokens) / tokens.numel()).backward()
        self._model.zero_grad(set_to_none=True)

    def reduce(self, plan: Plan, seating: Seating, channel: Channel, *, checksum: int = 0) -> Summary:
        """Wait for the gradient sums, then sum the summary: over the group first, then across groups. ``checksum`` is
        this rank's part of the sentinel's.

        A rank whose sums failed still takes part in the group's collective, for its fellows wait in it. Raises
        AttemptOver.
        """
        self._phases.enter(Phase.REDUCE)
        over: AttemptOver | None = None
        try:
            self._seat.finish(seating, channel)
        except AttemptOver as reason:
            over = reason
        loss, tokens, bad = self._sums.tolist()
        flag = self._reducer.flagged() or bool(bad)
        count = len(plan.shares[self._group]) if self._rank == 0 else 0
        row = torch.tensor([over is not None, flag, loss, tokens, count, checksum], dtype=torch.int64)
        dist.all_reduce(row)
        self._failpoint("summary")
        if over is not None:
            raise over
        if int(row[0]):
            raise AttemptOver(DiscardReason.COLLECTIVE_ERROR, "another rank of this group lost its peers")
        slots = torch.zeros(seating.size, dtype=torch.int64)
        slots[seating.rank] = row[5]
        across = torch.cat((row[:5], slots))
        across = across.to(self._device) if channel.on_device else across
        channel.post(across)
        self._failpoint("summary_sent")
        self._seat.finish(seating, channel)
        _, flags, loss, tokens, count, *checksums = across.tolist()
        if count != plan.microbatches:
            raise AttemptOver(
                DiscardReason.DIVERGENCE, f"{count} microbatches were summed, {plan.microbatches} planned"
            )
        return Summary(flagged=flags > 0, loss_sum=loss * 2.0**-LOSS_BITS, tokens=tokens, checksums=tuple(checksums))

    def _one(self, batch: Batch, plan: Plan) -> None:
        tokens = batch.tokens.to(self._device, non_blocking=True)
        labels = batch.labels.to(self._device, non_blocking=True)
        loss = token_loss(self._model(tokens), labels) / plan.planned_tokens
        loss.backward()
        value = loss.detach()
        good = value.abs() <= loss_limit(microbatches=plan.microbatches, ranks=dist.get_world_size())  # false for NaN
        fixed = torch.round(torch.where(good, value, 0.0).double() * 2.0**LOSS_BITS).to(torch.int64)
        self._sums += torch.stack((fixed, (labels != IGNORED).sum(), (~good).to(torch.int64)))


def loss_limit(*, microbatches: int, ranks: int) -> float:
    """Largest loss of one rank's microbatch that is not flagged: the step's sum must not wrap int64."""
    return 2.0 ** (_HEADROOM_BITS - LOSS_BITS) / (microbatches * ranks)


def random_seed(seed: int, step: int, microbatch: int, rank: int) -> int:
    """The seed of one rank's microbatch: the same whoever computes it, in whatever attempt."""
    return xxhash.xxh64_intdigest(f"{seed}/{step}/{microbatch}/{rank}".encode()) >> 1


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Put the generators of the CPU and of ``device`` back afterwards."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device.index], device_type=device.type):
            yield
