"""The verdict on a run: pass, or every promise that was broken, the first broken line first.

Pure. Called by ``phalanx chaos run`` and ``phalanx chaos judge``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ops.counting import counted
from ops.verdict import disk, endings, exits, history, outcomes, seats, told
from ops.verdict.limits import Limits, within
from ops.verdict.moments import on_one_clock
from ops.verdict.story import Story, Violation

SHOWN = 20
"""Violations that are told of; one lie can break every line after it."""
INVARIANTS: tuple[Callable[[Story], Iterator[Violation]], ...] = (
    history.exactly_once,
    history.one_history,
    history.one_digest,
    history.clocks,
    seats.quorum_ids,
    seats.seated_or_buried,
    seats.buried,
    disk.published,
    exits.exits_explained,
    endings.the_end,
    endings.disowned,
    outcomes.outcomes,
    outcomes.learning_rates,
    outcomes.states_move,
    told.told_alike,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong, in the order of time; what has no line comes last."""

    violations: tuple[Violation, ...]
    notes: tuple[str, ...] = ()
    """What could not be checked."""

    @property
    def holds(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """The object of ``phalanx chaos run --json``."""
        found = {
            "verdict": "pass" if self.holds else "fail",
            "violations": [violation.as_json() for violation in self.violations[:SHOWN]],
            "violated": len(self.violations),
        }
        return {**found, "notes": list(self.notes)} if self.notes else found

    def text(self) -> str:
        """For people: the first line that breaks a promise, then the others; then what could not be checked."""
        head = (
            "verdict: pass"
            if self.holds
            else f"verdict: FAIL, {counted(len(self.violations), 'violation')}; the first:"
        )
        shown = (f"  {violation}" for violation in self.violations[:SHOWN])
        return "\n".join([head, *shown, *(f"  note: {note}" for note in self.notes)])


def judge(story: Story, limits: Limits | None = None) -> Verdict:
    """Every violation of what holds for every run, and of the scenario's own limits (None: there are none)."""
    shared = limits is None or limits.shared_disk
    story = on_one_clock(story)
    found = list(story.damaged)
    found += [violation for invariant in INVARIANTS for violation in invariant(story)]
    found += disk.resume(story, shared_disk=shared)
    if limits is not None:
        found += within(story, limits)
    return Verdict(violations=tuple(sorted(found, key=_moment)), notes=tuple(_unchecked(story)))


def _unchecked(story: Story) -> Iterator[str]:
    """Groups that were started apart have no launcher."""
    if "launcher" not in story.by_writer:
        yield "no events/launcher.jsonl: how the groups ended could not be checked"


def _moment(violation: Violation) -> float:
    return float("inf") if violation.line is None else violation.line.t
