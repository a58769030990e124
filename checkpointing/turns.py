"""Whose turn is it to save, and is this commit one of those that are saved? Pure, and without talk between groups.

Steps: every ``interval``-th step is due, and participants take turns. Seconds: the wall clock is cut into slices of
``interval_s``; a due step is saved once in each slice, by the participant that the slice belongs to. Groups whose
clocks differ save one more or one fewer at the border of a slice, which harms nobody. While one group alone holds the
state, every commit is its turn, for nobody else could bring the state back.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Which commits are saved."""

    interval: int = 1
    interval_s: float | None = None
    """At most one save in so many seconds; None: every due step."""
    first_step: bool = False
    """Step 1 is due as well."""
    groups: int = 1
    """Of the run. One that is meant to be alone has no last replica to guard."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit as one participant sees it."""

    step: int
    rank: int
    """Of this group among the participants."""
    size: int
    """Participants."""
    holds: bool
    """This group had the state when the quorum was made; a healer had not."""
    holders: int
    """Groups that had it."""
    now: float = 0.0
    """Unix seconds; the same on all ranks of the group. Unused without ``interval_s``."""


def alone(commit: Commit, policy: Policy) -> bool:
    """Whether the state would be lost with one group that is not meant to be the only one."""
    return policy.groups > 1 and commit.holders == 1


def may_be_saved(commit: Commit, policy: Policy) -> bool:
    """Whether any participant may save this commit: the same answer in all of them, whatever their clocks say."""
    return alone(commit, policy) or commit.step % policy.interval == 0 or (policy.first_step and commit.step == 1)


def decide_turn(commit: Commit, policy: Policy, *, last_slice: int | None = None) -> tuple[bool, str]:
    """Whether this group saves this commit, and why. ``last_slice`` is the slice of the clock of its last save."""
    if alone(commit, policy):
        if commit.holds:
            return True, "no other group holds the state: every step is saved"
        return False, "the one group that holds the state saves it"
    if not may_be_saved(commit, policy):
        return False, f"every {policy.interval} steps"
    first = policy.first_step and commit.step == 1
    if first or policy.interval_s is None:
        owner = commit.step // policy.interval % commit.size
        return owner == commit.rank, f"the turn of participant {owner}"
    part = time_slice(commit.now, policy)
    if part == last_slice:
        return False, f"saved already in these {policy.interval_s:g} s"
    owner = part % commit.size
    return owner == commit.rank, f"these {policy.interval_s:g} s are those of participant {owner}"


def time_slice(now: float, policy: Policy) -> int:
    """The number of the slice of the clock that ``now`` lies in; 0 without ``interval_s``."""
    return int(now // policy.interval_s) if policy.interval_s else 0
