"""Quorum ids grow and name one set; who sat is seated again or buried; the buried confirm and publish nothing.

The lighthouse tells of a departure a moment later than it knows of it, with the moment in ``t``: so times are compared
here, not lines. An incarnation is one that the lighthouse's ``join`` events number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from configs.words import RUNNING_BITS
from ops.verdict.moments import surely_before
from ops.verdict.story import Invariant, Line, Story, Violation

Who = tuple[str, int]


def quorum_ids(story: Story) -> Iterator[Violation]:
    """Attempts grow, quorum ids never go back and name one set of participants each; groups are told what was granted;
    incarnations grow."""
    granted: dict[int, Line] = {}
    last: Line | None = None
    for line in story.of("lighthouse", "quorum"):
        if last is not None and _attempt(line) <= _attempt(last):
            yield Violation(Invariant.QUORUM_IDS, f"attempt {_attempt(line)} after {_attempt(last)}", line)
        elif last is not None and _id(line) < _id(last):
            yield Violation(Invariant.QUORUM_IDS, f"quorum id {_id(line)} after {_id(last)}", line)
        if line.event.get("epoch", _epoch(line)) != _epoch(line):
            why = f"an attempt of epoch {_epoch(line)} says epoch {line.event['epoch']}"
            yield Violation(Invariant.QUORUM_IDS, why, line)
        granted[_attempt(line)] = last = line
    yield from _one_set(story)
    for line in story.of_groups("quorum") if granted else ():
        grant = granted.get(_attempt(line))
        if grant is None:
            yield Violation(Invariant.QUORUM_IDS, f"nobody granted attempt {_attempt(line)}", line)
        elif any(line.event.get(key) != grant.event.get(key) for key in ("quorum_id", "lineage", "healing")):
            yield Violation(Invariant.QUORUM_IDS, f"the grant of this attempt, {grant.where}, says otherwise", line)
    joined: dict[str, int] = {}
    for line in story.of("lighthouse", "join"):
        if line.incarnation <= (before := joined.get(line.group, 0)):
            why = f"{line.group} joins as {line.incarnation} after {before}"
            yield Violation(Invariant.QUORUM_IDS, why, line)
        joined[line.group] = line.incarnation


def _one_set(story: Story) -> Iterator[Violation]:
    sets: dict[int, Line] = {}
    for line in [*story.of("lighthouse", "quorum"), *story.of_groups("quorum")]:
        first = sets.setdefault(_id(line), line)
        if line.event.get("participants") != first.event.get("participants"):
            why = f"quorum id {_id(line)} names other participants than in {first.where}"
            yield Violation(Invariant.QUORUM_IDS, why, line)


def _attempt(line: Line) -> int:
    return int(line.event.get("attempt") or 0)


def _id(line: Line) -> int:
    return int(line.event.get("quorum_id") or 0)


def departures(story: Story) -> Mapping[Who, Line]:
    """The departure of every incarnation that has one."""
    found: dict[Who, Line] = {}
    for line in story.of("lighthouse", "departure"):
        found.setdefault((line.group, line.incarnation), line)
    return found


def seated_or_buried(story: Story) -> Iterator[Violation]:
    """No participant of a quorum is left out of the next unless it was buried or released; nor is a successor seated
    while its predecessor counts."""
    gone, joined = departures(story), _Joined(story)
    exits = {(line.group, line.incarnation): line for line in story.of("launcher", "exit")}
    last: Line | None = None
    for line in story.of("lighthouse", "quorum", "end"):
        if line.event["event"] == "end":
            last = None
            continue
        for group in _names(last) if last is not None else ():
            assert last is not None
            who = (group, joined.before(group, last))
            if line.event.get("released") == group or (group in _names(line) and joined.before(group, line) == who[1]):
                continue
            if who not in gone and _epoch(line) > _epoch(last) and who in exits:
                continue  # a lighthouse that is killed takes the news of a burial with it; it died all the same
            if who not in gone or gone[who].t > line.t:
                after = "its successor is seated" if group in _names(line) else "left out"
                why = f"{group}.{who[1]} sat in {last.where} and was not buried, but {after}"
                yield Violation(Invariant.SEATED_OR_BURIED, why, line)
        last = line


def _names(line: Line) -> list[str]:
    return [str(name) for name in line.event.get("participants") or ()]


def _epoch(line: Line) -> int:
    return _attempt(line) >> RUNNING_BITS


class _Joined:
    """Which incarnation of a group was the newest when a line of the lighthouse was written."""

    def __init__(self, story: Story) -> None:
        self._joins = story.of("lighthouse", "join")

    def before(self, group: str, line: Line) -> int:
        """0 where no join is told."""
        found = (j.incarnation for j in self._joins if j.group == group and j.number < line.number)
        return max(found, default=0)


def buried(story: Story) -> Iterator[Violation]:
    """Buried is for ever: an incarnation is not seated after its burial, and what is confirmed was committed by one
    that lived; a checkpoint that a buried one publishes late was confirmed before its burial."""
    gone, joined = departures(story), _Joined(story)
    for line in story.of("lighthouse", "quorum"):
        for group in _names(line):
            who = (group, joined.before(group, line))
            if who in gone and gone[who].t < line.t:
                why = f"{group}.{who[1]} is seated after its burial in {gone[who].where}"
                yield Violation(Invariant.BURIED, why, line)
    yield from _confirmed_by_the_dead(story, gone)
    yield from _published_by_the_dead(story, gone)


def _confirmed_by_the_dead(story: Story, gone: Mapping[Who, Line]) -> Iterator[Violation]:
    restored = {line.event.get("restore") for line in story.of("lighthouse", "quorum")}
    for line in story.of("lighthouse", "confirmed"):
        made = story.commits.get(line.lineage, ()) if line.lineage is not None else ()
        alive = [
            commit
            for commit in made
            if not surely_before(line, commit)
            and not ((who := (commit.writer, commit.incarnation)) in gone and gone[who].t < line.t)
        ]
        if made and not alive and line.event.get("lineage") not in restored:
            why = f"{line.event.get('lineage')} is confirmed, but whoever had committed it was buried by then"
            yield Violation(Invariant.BURIED, why, line)


def _published_by_the_dead(story: Story, gone: Mapping[Who, Line]) -> Iterator[Violation]:
    confirmed = {line.lineage: line for line in reversed(story.of("lighthouse", "confirmed"))}
    for line in story.of_groups("checkpoint"):
        burial = gone.get((line.writer, line.incarnation))
        if line.event.get("status") != "saved" or burial is None or not surely_before(burial, line):
            continue
        if line.lineage in confirmed and surely_before(burial, confirmed[line.lineage]):
            why = f"{line.event.get('lineage')} was confirmed after the burial of who publishes it, in {burial.where}"
            yield Violation(Invariant.BURIED, why, line)
