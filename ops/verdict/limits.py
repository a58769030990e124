"""The limits that a scenario sets itself, beyond what holds for every run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from configs.failpoints import parse
from ops.counting import counted
from ops.history import digests
from ops.recovery import recoveries
from ops.verdict.exits import faults_of
from ops.verdict.story import Invariant, Line, Story, Violation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds and counts; None does not limit."""

    steps: int | None = None
    """The confirmed history reaches this step."""
    exit: int | None = 0
    """What the launcher ends with."""
    digests: bool = False
    """Every confirmed step has one."""
    digest: str | None = None
    """That of the last confirmed state, where the undisturbed run's is known."""
    states: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The digests of an undisturbed run, by step: confirmed states are equal to them."""
    shared_disk: bool = True
    failpoints: tuple[str, ...] = ()
    """All of these fire."""
    strikes: int = 0
    """So many faults are made from outside."""
    discards: int | None = None
    """Attempts that came to nothing, at most."""
    rollbacks: int | None = None
    restarts: int | None = None
    stall_s: float | None = None
    """Longest wait of a survivor for its next attempt."""
    recovery_s: float | None = None
    """Longest time from a death to the successor's first share, where it came to that."""


def within(story: Story, limits: Limits) -> Iterator[Violation]:
    """The limits that are not kept."""
    yield from _ends(story, limits)
    yield from _counts(story, limits)
    yield from _times(story, limits)


def _ends(story: Story, limits: Limits) -> Iterator[Violation]:
    confirmed = story.of("lighthouse", "confirmed")
    end = story.chain.end
    if limits.steps is not None and end.step < limits.steps:
        yield _late(f"the confirmed history ends at step {end.step} of {limits.steps}", confirmed[-1:])
    ends = [line for line in story.of("launcher", "exit") if not line.event.get("group")]
    code = ends[-1].event.get("code") if ends else None
    if limits.exit is not None and code != limits.exit:
        yield _late(f"the launch ended with {code}, expected {limits.exit}", ends[-1:])
    for lineage in story.chain.lineages if limits.digests else ():
        lines = story.commits.get(lineage, ())
        if lines and not any(line.event.get("digest") for line in lines):
            yield _late(f"{lineage} has no digest", list(lines[:1]))
    for lineage in story.chain.lineages:
        wanted = limits.states.get(lineage.step)
        others = [line for line in story.commits.get(lineage, ()) if line.event.get("digest") not in (None, wanted)]
        if wanted is not None and others:
            yield _late(f"{lineage} is not the state of the undisturbed run, {wanted[:12]}", others)
            break
    last, _ = digests(story.logs)
    if limits.digest is not None and last != limits.digest:
        why = f"the last state is {last}, the undisturbed run's is {limits.digest}"
        yield _late(why, list(story.commits.get(end, ())[:1]))


def _counts(story: Story, limits: Limits) -> Iterator[Violation]:
    faults = faults_of(story)
    fired = {str(line.event.get("failpoint")) for line in faults}
    for point in limits.failpoints:
        if point not in fired:
            yield _late(f"the fault {point} never fired{_why_not(point)}", [])
    made = [line for line in faults if line.writer == "launcher"]
    if len(made) < limits.strikes:
        yield _late(f"{len(made)} of {limits.strikes} faults from outside were made", made[-1:])
    discards: dict[object, Line] = {}
    for line in story.of_groups("discard"):
        discards.setdefault(line.event.get("attempt", line.t), line)
    yield from _most("attempt was discarded", list(discards.values()), limits.discards, many="attempts were discarded")
    yield from _most("rollback", story.of("lighthouse", "rollback"), limits.rollbacks)
    yield from _most("restart of groups", story.of("launcher", "restart"), limits.restarts, many="restarts of groups")


def _why_not(point: str) -> str:
    """What a failpoint that waits in vain often has in common: its group had no turn at that step."""
    told = parse(point)
    if told.step is None or not told.name.startswith("save_"):
        return ""
    return f": groups save in turn, and step {told.step} was not {told.group}'s (without a step, its first turn counts)"


def _most(one: str, lines: list[Line], limit: int | None, *, many: str | None = None) -> Iterator[Violation]:
    if limit is not None and len(lines) > limit:
        yield _late(f"{counted(len(lines), one, many)}, at most {limit} allowed", lines[limit : limit + 1])


def _times(story: Story, limits: Limits) -> Iterator[Violation]:
    deaths = {(line.group, line.t): line for line in story.of("launcher", "exit")}
    for recovery in recoveries(story.logs):
        near = [line for (group, t), line in deaths.items() if group == recovery.group and t >= recovery.t][:1]
        for what, seconds, limit in (
            ("stall", recovery.stall_s, limits.stall_s),
            ("recovery", recovery.recovery_s, limits.recovery_s),
        ):
            if limit is not None and seconds is not None and seconds > limit:
                yield _late(f"{recovery.group}: {what} of {seconds:.2f} s, at most {limit:g} s allowed", near)


def _late(why: str, lines: list[Line]) -> Violation:
    return Violation(Invariant.LIMITS, why, lines[0] if lines else None)
