"""The words every part of Phalanx shares: lineage, outcomes, reasons and exit codes.

The middle packages (lighthouse, replica_groups, checkpointing) never import each other, so what they all speak of is
defined here, without torch and without I/O.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

RUNNING_BITS = 32


class Lineage(NamedTuple):
    """Names a state: the committed step and the quorum id of the commit that made it.

    Equal step is not equal state; equal lineage is. ``Lineage(0, 0)`` is the state made from the seed.
    """

    step: int
    quorum_id: int

    def __str__(self) -> str:
        return f"{self.step}:{quorum_id_text(self.quorum_id)}"

    @property
    def folder(self) -> str:
        """Name of the checkpoint folder that holds this state."""
        return f"step-{self.step:08d}-{quorum_id_text(self.quorum_id)}"

    @classmethod
    def parse(cls, text: str) -> Lineage:
        """Inverse of ``str``. Raises ValueError on anything else."""
        step, _, rest = text.partition(":")
        epoch, _, running = rest.partition(".")
        return cls(int(step), join_quorum_id(epoch=int(epoch), running=int(running)))

    @classmethod
    def parse_folder(cls, name: str) -> Lineage | None:
        """The lineage a checkpoint folder's name carries, or None when the name is not one of ours."""
        parts = name.split("-")
        if len(parts) != 3 or parts[0] != "step" or len(parts[1]) < 8:
            return None
        try:
            found = cls.parse(f"{int(parts[1])}:{parts[2]}")
        except ValueError:
            return None
        return found if found.folder == name else None


SCRATCH = Lineage(0, 0)


def quorum_id_text(quorum_id: int) -> str:
    """``EPOCH.N`` of a quorum id (epoch * 2^32 + running number)."""
    return f"{quorum_id >> RUNNING_BITS}.{quorum_id & ((1 << RUNNING_BITS) - 1)}"


def join_quorum_id(*, epoch: int, running: int) -> int:
    """The quorum id of a running number within an epoch."""
    if not 0 <= running < 1 << RUNNING_BITS:
        raise ValueError(f"running number {running} does not fit {RUNNING_BITS} bits")
    return (epoch << RUNNING_BITS) | running


class Outcome(enum.StrEnum):
    """How an attempt ends."""

    UPDATED = "updated"
    SKIPPED = "skipped"
    DISCARDED = "discarded"


class DiscardReason(enum.StrEnum):
    """Why an attempt was discarded."""

    PEER_LOST = "peer_lost"
    COLLECTIVE_ERROR = "collective_error"
    VOTE_FAILED = "vote_failed"
    NOT_ENOUGH_GROUPS = "not_enough_groups"
    DIVERGENCE = "divergence"


class DepartureCause(enum.StrEnum):
    """Why the lighthouse no longer counts an incarnation."""

    LEFT = "left"
    EXITED = "exited"
    EXPIRED = "expired"
    HUNG = "hung"
    REFUSED = "refused"
    KILLED = "killed"


SENTINEL_ROTATION = 8
"""Steps until the divergence sentinel has looked at every tensor."""


class Exit(enum.IntEnum):
    """Process exit codes."""

    DONE = 0
    CHECK_FAILED = 1
    BAD_CONFIG = 2
    QUORUM_LOST = 3
    STALLED = 4
    NONFINITE = 5
    CHECKPOINT = 6
    INCARNATION_OVER = 7
    DRAINED = 75
    INTERRUPTED = 130


class ExitRequest(Exception):
    """Ends the process with a code of the contract; caught only at a process's edge."""

    def __init__(self, code: Exit, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
