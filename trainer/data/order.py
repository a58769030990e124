"""Which sample stands at a position of the global stream?

The stream is epoch after epoch, each a permutation of all samples. The permutation is computed, not stored: a Feistel
network over the next even power of two, walked until it lands inside (Black and Rogaway, "Ciphers with Arbitrary
Finite Domains", 2002). So a position says all: nothing has to be replayed, saved or agreed on after a failure, and a
resumed epoch goes on in its own order. The order depends on (samples, seed, epoch) alone, for ever: its test vectors
must not change.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
from typing import NamedTuple

_ROUNDS = 8
_MASK = (1 << 64) - 1


class Sample(NamedTuple):
    """One use of a sample: in which epoch, and which."""

    epoch: int
    sequence: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """The order of an endless stream over ``samples`` samples (at least 1)."""

    samples: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("an order needs at least one sample")

    def sample(self, position: int) -> Sample:
        """What stands at a position (>= 0) of the stream."""
        epoch, offset = divmod(position, self.samples)
        return Sample(epoch, self.index(epoch=epoch, offset=offset))

    def index(self, *, epoch: int, offset: int) -> int:
        """The sample used as number ``offset`` of an epoch; a bijection of range(samples) for each epoch."""
        if not 0 <= offset < self.samples:
            raise IndexError(f"offset {offset} is not within an epoch of {self.samples} samples")
        if not self.shuffle:
            return offset
        keys = _round_keys(self.seed, epoch)
        half = max(1, ((self.samples - 1).bit_length() + 1) // 2)
        index = _feistel(offset, keys=keys, half=half)
        while index >= self.samples:  # the domain is below 4 x samples: few rounds of the walk
            index = _feistel(index, keys=keys, half=half)
        return index


def total_samples(*, samples: int, epochs: int | None) -> int | None:
    """Length of the stream when ``training.epochs`` bounds it, else None."""
    return samples * epochs if epochs else None


@functools.lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(f"phalanx order {seed} {epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return struct.unpack(f"<{_ROUNDS}Q", digest)


def _feistel(value: int, *, keys: tuple[int, ...], half: int) -> int:
    """A bijection of range(4 ** half)."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << half | right


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
