"""A group has ended: is it started again, when, and if not, with what code does that leave the run?

Pure functions over exit codes, so that every rule can be tested without a process. Codes are those of a process:
0..255 as it chose, negative the signal that killed it.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Mapping, Sequence

from configs.words import Exit

ENDS_RUN = (Exit.BAD_CONFIG, Exit.NONFINITE, Exit.CHECKPOINT)
ORDERLY = (Exit.DONE, Exit.DRAINED)
SETTLE_S = 0.2
"""How long the fellows of a rank that only says "my group is over" may take to say why."""


class Next(enum.StrEnum):
    """What follows the end of a group."""

    RESTART = "restart"
    GROUP_DONE = "group_done"
    RUN_OVER = "run_over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """When a group may be started again. ``max_restarts`` counts since the last committed step; None is no limit."""

    max_restarts: int | None = None
    backoff_s: float = 1.0
    backoff_limit_s: float = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """How one life of a group ended, and whether it had committed a step."""

    code: int
    committed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do; ``code`` is what the group leaves behind when it is not started again."""

    next: Next
    code: int
    delay_s: float = 0.0


def restart_decision(history: Sequence[Ending], policy: Policy, *, draining: bool = False) -> tuple[Decision, str]:
    """What follows the last of ``history`` (oldest first, at least one), and why."""
    code = history[-1].code
    if code == Exit.DONE:
        return Decision(next=Next.GROUP_DONE, code=code), "done"
    if code in ENDS_RUN:
        return Decision(next=Next.RUN_OVER, code=code), f"{describe_code(code)}: starting again would not help"
    if draining:
        why = "drained" if code == Exit.DRAINED else f"{describe_code(code)} while the run is being stopped"
        return Decision(next=Next.GROUP_DONE, code=Exit.DRAINED), why
    if code == Exit.DRAINED:
        return Decision(next=Next.RESTART, code=code), "drained, and nobody asked this launcher to stop"
    if code == Exit.QUORUM_LOST:
        return Decision(next=Next.RUN_OVER, code=code), f"{describe_code(code)}: too few groups for too long"
    made = restarts_since_commit(history)
    if policy.max_restarts is not None and made >= policy.max_restarts:
        left = code if code > 0 else Exit.INCARNATION_OVER
        limit = f"launch.max_restarts = {policy.max_restarts}"
        why = f"{describe_code(code)} after {made} restarts without a commit ({limit})"
        return Decision(next=Next.RUN_OVER, code=left), why
    delay = backoff(made, policy)
    when = "at once" if delay == 0 else f"in {delay:g} s: restart {made + 1} without a commit"
    return Decision(next=Next.RESTART, code=code, delay_s=delay), f"{describe_code(code)}; again {when}"


def restarts_since_commit(history: Sequence[Ending]) -> int:
    """How many restarts were already made since the group last committed a step (the one to decide not counted)."""
    fruitless = 0
    for ending in reversed(history):
        if ending.committed:
            return fruitless
        fruitless += 1
    return fruitless - 1


def backoff(restarts: int, policy: Policy) -> float:
    """Seconds before the next restart: none for the first, then doubling up to the limit."""
    if restarts == 0:
        return 0.0
    return float(min(policy.backoff_s * 2.0 ** min(restarts - 1, 30), policy.backoff_limit_s))


def group_code(codes: Mapping[int, int]) -> tuple[int, int]:
    """(code, rank) that speaks for a group whose ranks ended with ``codes`` ({rank: code}, at least one).

    A rank that sees a fellow gone ends with 7, so the others' codes say more: first what ends the run, then a signal,
    then any other failure. Rank 0's orderly end speaks where the others only saw it go.
    """
    if codes.get(0) in ORDERLY and all(code in (*ORDERLY, Exit.INCARNATION_OVER) for code in codes.values()):
        return codes[0], 0
    rank = min(codes, key=lambda r: (_telling(codes[r]), r))
    return codes[rank], rank


def settle_s(code: int, *, grace_s: float) -> float:
    """How long after the first rank ended with ``code`` the others may take to end by themselves."""
    if code in ORDERLY:
        return grace_s
    return 0.0 if code < 0 or code in ENDS_RUN else SETTLE_S


def describe_code(code: int) -> str:
    """``killed by SIGKILL`` or ``exit 7``, for people."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _telling(code: int) -> int:
    if code in ENDS_RUN:
        return 0
    if code < 0:
        return 1
    order = {Exit.INCARNATION_OVER: 3, Exit.DRAINED: 4, Exit.DONE: 5}
    return next((place for known, place in order.items() if known == code), 2)
