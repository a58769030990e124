"""Which microbatches does each participant compute in this attempt?

A pure function of what all participants know, so that no message is needed to agree on it. The global batch is
constant: a step is always the same M microbatches, whoever is alive. Numbers of microbatches are global over the whole
run: microbatch m is the samples [m * B, (m + 1) * B) of the stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What the config says of a step, for every attempt of the run."""

    microbatches: int
    """M: microbatches of one step over all groups (constant batch)."""
    samples: int
    """B: sequences of one microbatch: local batch size x data-parallel ranks of a group."""
    seq_len: int
    total: int | None = None
    """Samples of the whole stream, where the data is finite."""
    per_group: int | None = None
    """Set with ``batch = "per_group"``: microbatches that each up-to-date participant computes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of one attempt."""

    first: int
    """Number of the step's first microbatch."""
    shares: dict[str, tuple[int, ...]]
    """Microbatch numbers of every participant; a healing one has an empty share."""
    samples: int
    """Sequences of the whole step: how far a commit moves the cursor."""
    planned_tokens: int
    """The constant that divides the loss before backward."""

    @property
    def microbatches(self) -> int:
        return sum(len(share) for share in self.shares.values())


def plan(*, cursor: int, shape: BatchShape, participants: Sequence[str], up_to_date: Sequence[str]) -> Plan:
    """The plan of the attempt at ``cursor``. ``participants`` are in rank order; shares go round in that order.

    With more up-to-date participants than microbatches the last ones are hot spares with empty shares.
    """
    if cursor % shape.samples:
        raise ValueError(f"cursor {cursor} is not at the start of a microbatch of {shape.samples} samples")
    workers = [group for group in participants if group in set(up_to_date)]
    wanted = shape.microbatches if shape.per_group is None else shape.per_group * len(workers)
    left = None if shape.total is None else max(0, shape.total - cursor)
    count = wanted if left is None else min(wanted, -(-left // shape.samples))
    first = cursor // shape.samples
    shares: dict[str, tuple[int, ...]] = dict.fromkeys(participants, ())
    for r, group in enumerate(workers):
        shares[group] = tuple(range(first + r, first + count, len(workers)))
    samples = count * shape.samples if left is None else min(count * shape.samples, left)
    return Plan(first=first, shares=shares, samples=samples, planned_tokens=wanted * shape.samples * shape.seq_len)


def at_end(*, step: int, cursor: int, steps: int, shape: BatchShape) -> bool:
    """Whether a state is at the end of the run: all steps done, or all data used."""
    return step >= steps or (shape.total is not None and cursor >= shape.total)


def efficiency(*, microbatches: int, groups: int) -> float:
    """Share of the time in which no group waits for another's longer share: M / (K * ceil(M / K))."""
    rounds = -(-microbatches // groups)
    return microbatches / (groups * rounds)
