"""What is told twice is told alike: by a group and its log's name, by a commit and its confirmation, by a group and its
launcher, by all groups that one lighthouse admitted."""

from __future__ import annotations

from collections.abc import Iterator

from ops.verdict.seats import Who
from ops.verdict.story import Invariant, Line, Story, Violation


def told_alike(story: Story) -> Iterator[Violation]:
    """Two lines that speak of the same thing say the same of it."""
    for group in story.groups:
        for line in story.of(group):
            if line.event.get("group") not in (None, group):
                yield Violation(Invariant.TOLD_ALIKE, f"a line of {line.group} in the log of {group}", line)
    yield from _confirmations(story)
    yield from _configs(story)
    yield from _codes(story)


def _confirmations(story: Story) -> Iterator[Violation]:
    for line in story.of("lighthouse", "confirmed"):
        made = story.commits.get(line.lineage, ()) if line.lineage is not None else ()
        said = line.event.get("participants")
        other = next((c for c in made if said is not None and c.event.get("participants", said) != said), None)
        if other is not None:
            why = f"{line.lineage} is confirmed as made by {said}, but {other.where} says {other.event['participants']}"
            yield Violation(Invariant.TOLD_ALIKE, why, line)


def _configs(story: Story) -> Iterator[Violation]:
    """A lighthouse admits one config; a launch that forks a run begins with another lighthouse."""
    lives: dict[Who, int] = {}
    life = 0
    for line in story.of("lighthouse", "lighthouse", "join"):
        if line.event["event"] == "lighthouse":
            life += 1
        else:
            lives[line.group, line.incarnation] = life
    first: dict[int, Line] = {}
    for line in story.of_groups("start"):
        who = (line.writer, line.incarnation)
        if who in lives and line.event.get("config_digest"):
            known = first.setdefault(lives[who], line)
            if known.event["config_digest"] != line.event["config_digest"]:
                why = f"{line.writer}.{line.incarnation} has another config than in {known.where}"
                yield Violation(Invariant.TOLD_ALIKE, why, line)


def _codes(story: Story) -> Iterator[Violation]:
    """A signal may still end who has said its code."""
    seen = {(line.group, line.incarnation): line for line in story.of("launcher", "exit")}
    for line in story.of_groups("exit"):
        end = seen.get((line.writer, line.incarnation))
        code = None if end is None else end.event.get("code")
        if end is not None and code is not None and code >= 0 and code != line.event.get("code"):
            why = f"it ends with {line.event.get('code')}, but {end.where} saw {code}"
            yield Violation(Invariant.TOLD_ALIKE, why, line)
