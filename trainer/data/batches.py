"""What is in microbatch m on this data-parallel rank?

Microbatch m covers positions [m x B, (m + 1) x B) of the global stream, B being local_batch_size x data-parallel ranks
of a group; rank d takes the d-th ``local_batch_size`` of them. So its content is a function of m alone, whichever
group computes it, in which attempt, after whatever failure. Positions behind the end of finite data are rows without a
label that counts. Called by the loader, in this process or in its workers.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch

from trainer.data.order import Order
from trainer.data.sequences import IGNORED, Sequences


@dataclasses.dataclass(kw_only=True)
class Batch:
    """One data-parallel rank's part of a microbatch."""

    microbatch: int
    tokens: torch.Tensor
    """int64 [local_batch_size, seq_len]"""
    labels: torch.Tensor
    """int64 [local_batch_size, seq_len]; -100 where a position does not count"""
    valid: int
    """Labels that count."""
    samples: int
    """Rows that are samples and do not lie behind the end of the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which rows of each microbatch are this rank's."""

    local_batch_size: int
    dp_rank: int = 0
    dp_ranks: int = 1

    def positions(self, microbatch: int) -> range:
        """Positions in the global stream of this rank's rows."""
        first = (microbatch * self.dp_ranks + self.dp_rank) * self.local_batch_size
        return range(first, first + self.local_batch_size)


class Rows(NamedTuple):
    """The content of a ``Batch`` as arrays, as it passes between processes."""

    tokens: np.ndarray
    labels: np.ndarray
    samples: int

    def batch(self, microbatch: int) -> Batch:
        """As tensors that share this memory."""
        return Batch(
            microbatch=microbatch,
            tokens=torch.from_numpy(self.tokens),
            labels=torch.from_numpy(self.labels),
            valid=int(np.count_nonzero(self.labels != IGNORED)),
            samples=self.samples,
        )


class Batches:
    """All microbatches of this rank, by number. Stateless; pickled into loader workers."""

    def __init__(self, *, sequences: Sequences, order: Order, layout: Layout, total: int | None = None) -> None:
        self.sequences = sequences
        self.order = order
        self.layout = layout
        self.total = total
        """Length of the global stream in samples, or None when it is endless."""

    def __getitem__(self, microbatch: int) -> Rows:
        shape = (self.layout.local_batch_size, self.sequences.seq_len)
        tokens = np.zeros(shape, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        samples = 0
        for row, position in enumerate(self.layout.positions(microbatch)):
            if self.total is None or position < self.total:
                tokens[row], labels[row] = self.sequences.read(self.order.sample(position).sequence)
                samples += 1
        return Rows(tokens, labels, samples)
