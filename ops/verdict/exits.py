"""Is every death of a group one that was meant?

Done and drained explain themselves. A death is explained by a fault injected into its group since the death before;
code 7 and the end of a group that the lighthouse has buried also by a fault elsewhere, for a group may be pulled along;
after somebody asked the launcher to stop, by that.
"""

from __future__ import annotations

from collections.abc import Iterator

from configs.words import Exit
from ops.verdict.moments import surely_before
from ops.verdict.seats import departures
from ops.verdict.story import Invariant, Line, Story, Violation

ORDERLY = frozenset({int(Exit.DONE), int(Exit.DRAINED)})
BURIED_ALIVE = ("hung", "expired")
"""Departures after which the launcher ends what is left."""


def exits_explained(story: Story) -> Iterator[Violation]:
    """Every end that a launcher saw has a cause that was injected or asked for."""
    since: dict[str, Line] = {}
    for line in (line for line in story.of("launcher", "exit") if line.event.get("group")):
        code = int(line.event.get("code") or 0)
        if code not in ORDERLY and not _explained(story, line, code, since.get(line.group)):
            name = f"{line.group}.{line.incarnation}" if line.incarnation else line.group
            yield Violation(Invariant.EXITS, f"{name} ended with {code}, and no fault explains it", line)
        since[line.group] = line
    yield from _never_ended(story)


def _never_ended(story: Story) -> Iterator[Violation]:
    """Once the launcher has ended, every incarnation it started has an end that it saw: of those since its lighthouse
    last began, for a launcher before it may have been killed."""
    ends = [line for line in story.of("launcher", "exit") if not line.event.get("group")]
    if not ends:
        return
    seen = {(line.group, line.incarnation) for line in story.of("launcher", "exit")}
    ours = {group for group, _ in seen}
    begun = story.of("launcher", "lighthouse")
    for line in story.of_groups("start"):
        ours_alone = surely_before(line, ends[-1]) and (not begun or surely_before(begun[-1], line))
        if ours_alone and line.writer in ours and (line.writer, line.incarnation) not in seen:
            why = f"{line.writer}.{line.incarnation} began, and nobody saw its end"
            yield Violation(Invariant.EXITS, why, line)


def _explained(story: Story, exit_: Line, code: int, since: Line | None) -> bool:
    faults = [
        fault
        for fault in faults_of(story)
        if not surely_before(exit_, fault) and (since is None or not surely_before(fault, since))
    ]
    if any(fault.group == exit_.group for fault in faults):
        return True
    if any(not surely_before(exit_, notice) for notice in story.of("launcher", "notice")):
        return True
    departure = departures(story).get((exit_.group, exit_.incarnation))
    pulled = code == Exit.INCARNATION_OVER or (
        departure is not None and departure.event.get("cause") in BURIED_ALIVE and not surely_before(exit_, departure)
    )
    return pulled and bool(faults)


def faults_of(story: Story) -> list[Line]:
    """Every injected fault, whoever carried it out, in time order."""
    return sorted([*story.of("launcher", "fault"), *story.of_groups("fault")], key=lambda line: line.t)
