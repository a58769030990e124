"""How saving, reading and transferring state can fail.

``CheckpointError`` ends the process with exit 6 and is raised only where going on would lose or invent state. The
others are for callers that have another way: another source, another checkpoint.
"""

from __future__ import annotations

from configs.words import Exit, ExitRequest


class CheckpointError(ExitRequest):
    """A checkpoint that had to be saved or read could not be: exit 6."""

    def __init__(self, reason: str) -> None:
        super().__init__(Exit.CHECKPOINT, reason)


class DamagedCheckpoint(CheckpointError):
    """The checkpoint that was to be loaded does not verify, the same on every rank; an older one may."""


class NothingThere(CheckpointError):
    """What is asked for is not on this group's disk; another group's, or a living one, may have it."""


class BadCheckpoint(Exception):
    """One checkpoint folder does not verify; the text says what is wrong with it."""


class TransferError(Exception):
    """State could not be taken from any source. Destinations are void if a byte had arrived."""


class TransferStopped(TransferError):
    """The caller's ``stop`` said that the attempt is over. Destinations are void if a byte had arrived."""
