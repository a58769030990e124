"""Exactly once, one history, one digest for each lineage, one clock.

The chain of confirmed lineages is walked once more, line by line: each commit that counts must stand on the state
before it in the chain, and whoever made it must have held that state.
"""

from __future__ import annotations

from collections.abc import Iterator

from configs.run_folder import Event
from configs.words import SCRATCH, SENTINEL_ROTATION, Lineage
from ops.history import lineage_of
from ops.ledger import read_ledger
from ops.verdict.endings import goes_on
from ops.verdict.story import Invariant, Line, Story, Violation

SAME_EVERYWHERE = ("cursor", "lr", "loss", "grad_norm")
"""Fields of a commit that speak of the whole step."""


def exactly_once(story: Story) -> Iterator[Violation]:
    """The ledger's findings: every sample of the confirmed history once, in the order of an undisturbed run."""
    known = {finding.why for finding in story.chain.findings}
    for finding in read_ledger(story.logs).findings:
        if finding.why not in known and finding.about != "digest":
            yield story.violation(Invariant.EXACTLY_ONCE, finding)


def one_history(story: Story) -> Iterator[Violation]:
    """The confirmed lineages are one chain, cut back by logged rollbacks only; nothing behind a rollback's fence comes
    back; each commit of it stands on the one before."""
    for finding in story.chain.findings:
        yield story.violation(Invariant.ONE_HISTORY, finding)
    yield from _fenced(story)
    before = SCRATCH
    for lineage in story.chain.lineages:
        for line in story.commits.get(lineage, ()):
            yield from _stands_on(story, line, lineage, before)
        before = lineage


def _fenced(story: Story) -> Iterator[Violation]:
    fences: list[tuple[int, int]] = []
    for line in story.of("lighthouse", "rollback", "confirmed"):
        if line.event["event"] == "rollback":
            to, quorum_id = lineage_of(line.event, "to"), line.event.get("quorum_id")
            if to is not None and isinstance(quorum_id, int):
                fences.append((to.step, quorum_id))
        elif (lineage := line.lineage) is not None:
            for step, quorum_id in fences:
                if lineage.step > step and lineage.quorum_id < quorum_id:
                    why = f"{lineage} confirmed, though the rollback to step {step} has made it invalid for ever"
                    yield Violation(Invariant.ONE_HISTORY, why, line)


def _stands_on(story: Story, commit: Line, lineage: Lineage, before: Lineage) -> Iterator[Violation]:
    made = (commit.event.get("step"), commit.event.get("quorum_id", lineage.quorum_id))
    if made != lineage:
        yield Violation(
            Invariant.ONE_HISTORY, f"the commit of {lineage} says step {made[0]}, quorum id {made[1]}", commit
        )
    quorum = _quorum_of(story, commit)
    if quorum is not None and quorum.lineage != before:
        why = f"{lineage} was made from {quorum.event.get('lineage')}, but what was confirmed before it is {before}"
        yield Violation(Invariant.ONE_HISTORY, why, commit)


def _quorum_of(story: Story, commit: Line) -> Line | None:
    """The group's own line of the attempt that a commit ends."""
    attempt = commit.event.get("attempt")
    found = (q for q in story.of(commit.writer, "quorum") if attempt is not None and q.event.get("attempt") == attempt)
    return next(found, None)


def one_digest(story: Story) -> Iterator[Violation]:
    """Equal lineage is equal state: all digests of a lineage, confirmed or not, are the same. But for those of groups
    that the divergence sentinel named before it had looked at every tensor once more; what all of them disowned must
    not be in the confirmed history."""
    for lineage, lines in story.commits.items():
        known = [line for line in lines if line.event.get("digest")]
        owned = [line for line in known if not _disowned(story, line, lineage)]
        if not owned and len({line.event["digest"] for line in known}) > 1 and lineage in story.chain.lineages:
            yield Violation(Invariant.ONE_DIGEST, f"{lineage} is confirmed, though its holders differ", known[-1])
        for line in owned[1:]:
            if line.event["digest"] != owned[0].event["digest"]:
                why = f"{lineage} is {_short(line.event)} here and {_short(owned[0].event)} in {owned[0].where}"
                yield Violation(Invariant.ONE_DIGEST, why, line)
                break


def _disowned(story: Story, commit: Line, lineage: Lineage) -> bool:
    """The sentinel found, in time, that this incarnation's state was not what the others held, and it was replaced."""
    until = lineage.step + SENTINEL_ROTATION
    for line in story.of(commit.writer, "divergence"):
        if commit.writer in (line.event.get("groups") or ()) and line.incarnation == commit.incarnation:
            step = line.event.get("step")
            if line.t >= commit.t and isinstance(step, int) and lineage.step <= step <= until:
                return not goes_on(story, line)
    return False


def _short(event: Event) -> str:
    return str(event["digest"])[:12]


def clocks(story: Story) -> Iterator[Violation]:
    """Step, cursor and learning rate derive from the committed step; whoever commits held the current state."""
    before = 0
    for lineage in story.chain.lineages:
        lines = story.commits.get(lineage, ())
        for field in SAME_EVERYWHERE:
            said = [line for line in lines if field in line.event]
            other = next((line for line in said[1:] if line.event[field] != said[0].event[field]), None)
            if other is not None:
                why = f"{lineage}: {field} is {other.event[field]} here and {said[0].event[field]} in {said[0].where}"
                yield Violation(Invariant.CLOCKS, why, other)
        first = lines[0] if lines and "cursor" in lines[0].event else None
        if first is not None:
            expected = before + int(first.event.get("samples") or 0)
            if first.event["cursor"] != expected:
                why = f"{lineage}: the cursor is {first.event['cursor']}, expected {expected}"
                yield Violation(Invariant.CLOCKS, why, first)
            before = int(first.event["cursor"] or 0)
    for group in story.groups:
        yield from _own_clock(story, group)
    yield from _one_step_each(story)


def _one_step_each(story: Story) -> Iterator[Violation]:
    """Who names a lineage names its step."""
    names = ("quorum", "confirmed", "end", "restore", "checkpoint", "orphaned")
    for line in [*story.of("lighthouse", *names), *story.of_groups(*names)]:
        if line.lineage is not None and line.event.get("step") != line.lineage.step:
            yield Violation(Invariant.CLOCKS, f"step {line.event.get('step')} of lineage {line.lineage}", line)


def _own_clock(story: Story, group: str) -> Iterator[Violation]:
    """Follow the state that each incarnation of a group holds."""
    holds: dict[int, Lineage] = {}
    seated: dict[int, Line] = {}
    ended: dict[tuple[int, object], Line] = {}
    for line in story.of(group, "quorum", "heal", "restore", "commit", "discard"):
        who, held, quorum = line.incarnation, holds.get(line.incarnation), seated.get(line.incarnation)
        if line.event["event"] in ("commit", "discard") and (attempt := line.event.get("attempt")) is not None:
            first = ended.setdefault((who, attempt), line)
            if first.event["event"] != line.event["event"]:
                why = (
                    f"a {line.event['event']} of the attempt that ended in {first.where} with a {first.event['event']}"
                )
                yield Violation(Invariant.CLOCKS, why, line)
        match line.event["event"]:
            case "quorum":
                seated[who] = line
            case "restore" if line.lineage is not None:
                holds[who] = line.lineage
            case "heal" if quorum is not None and quorum.lineage is not None:
                holds[who] = quorum.lineage
                yield from _sources(line, quorum)
                if line.event.get("step") != quorum.lineage.step:
                    yield Violation(Invariant.CLOCKS, f"healed to another step than that of {quorum.lineage}", line)
            case "commit" if quorum is not None:
                yield from _moves_by_one(line, quorum, held)
                if line.lineage is not None:
                    holds[who] = line.lineage
            case "discard" if held is not None and line.event.get("step") != held.step:
                yield Violation(Invariant.CLOCKS, f"a discard moved the step: {held} was held before", line)


def _sources(heal: Line, quorum: Line) -> Iterator[Violation]:
    """Only who was up to date can be one."""
    able = set(quorum.event.get("participants") or ()) - set(quorum.event.get("healing") or ()) - {heal.writer}
    strangers = [name for name in heal.event.get("sources") or () if name not in able]
    if strangers:
        others = ", ".join(sorted(able)) or "nobody"
        why = f"healed from {', '.join(strangers)}, but {quorum.where} has {others} up to date"
        yield Violation(Invariant.CLOCKS, why, heal)


def _moves_by_one(commit: Line, quorum: Line, held: Lineage | None) -> Iterator[Violation]:
    if commit.event.get("attempt") != quorum.event.get("attempt"):
        why = f"a commit of attempt {commit.event.get('attempt')}, but the last quorum is that of {quorum.where}"
        yield Violation(Invariant.CLOCKS, why, commit)
    elif commit.event.get("step") != int(quorum.event.get("step") or 0) + 1:
        why = f"a commit of step {commit.event.get('step')} in an attempt at step {quorum.event.get('step')}"
        yield Violation(Invariant.CLOCKS, why, commit)
    elif any(commit.event.get(key) != quorum.event.get(key) for key in ("participants", "healing")):
        why = f"a commit by {_seats(commit)}, but {quorum.where} seats {_seats(quorum)}"
        yield Violation(Invariant.CLOCKS, why, commit)
    elif held is None or held != quorum.lineage:
        why = f"a commit on {quorum.event.get('lineage')} by a group that holds {held or 'nothing'}"
        yield Violation(Invariant.CLOCKS, why, commit)


def _seats(line: Line) -> str:
    healing = line.event.get("healing") or ()
    return ", ".join(
        f"{name} (heals)" if name in healing else str(name) for name in line.event.get("participants") or ()
    )
