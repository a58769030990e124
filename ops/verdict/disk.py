"""Only confirmed states are published, and a resume is never older than the checkpoint before the last one saved."""

from __future__ import annotations

from collections.abc import Iterator

from configs.words import SCRATCH, Lineage
from ops.history import confirmed_chain, lineage_of
from ops.verdict.moments import surely_before
from ops.verdict.story import Invariant, Line, Story, Violation


def published(story: Story) -> Iterator[Violation]:
    """Every ``saved`` names a lineage that the lighthouse had confirmed by then."""
    told = {line.lineage: line for line in reversed(story.of("lighthouse", "confirmed"))}
    for line in _saved(story):
        lineage = line.lineage
        if lineage is None or lineage == SCRATCH:
            continue
        if lineage not in told or surely_before(line, told[lineage]):
            when = "only confirmed later" if lineage in told else "never confirmed"
            yield Violation(Invariant.PUBLISHED, f"{lineage} is published, but was {when}", line)


def resume(story: Story, *, shared_disk: bool = True) -> Iterator[Violation]:
    """What is restored is confirmed history, and with a disk that all groups share nothing older than the checkpoint
    before the last one saved."""
    for line in story.of_groups("restore"):
        lineage = line.lineage
        if lineage is None:
            continue
        told, grant = story.of("lighthouse", "confirmed", "rollback"), _grant_of(story, line)
        chain = confirmed_chain(x.event for x in told if _known_by(x, line, grant))
        if lineage != SCRATCH and lineage not in chain.lineages:
            yield Violation(Invariant.RESUME, f"{lineage} is restored, but is not of the confirmed history", line)
        yield from _as_told(story, line)
        there = _on_disk(story, line)
        if shared_disk and len(there) > 1 and lineage.step < there[-2].step:
            why = f"{lineage} is restored, though {there[-2]} and {there[-1]} had been saved"
            yield Violation(Invariant.RESUME, why, line)


def _as_told(story: Story, restore: Line) -> Iterator[Violation]:
    """One state is fixed for all: that of the grant."""
    grant = _grant_of(story, restore)
    if grant is not None and (told := grant.event.get("restore")) != restore.event.get("lineage"):
        why = f"{restore.event.get('lineage')} is restored, but {grant.where} tells all to restore {told}"
        yield Violation(Invariant.RESUME, why, restore)


def _known_by(line: Line, restore: Line, grant: Line | None) -> bool:
    """The lighthouse had told this when it granted the attempt of a restore: by the order of its lines; by the clocks
    where nobody granted it."""
    return not surely_before(restore, line) if grant is None else line.number < grant.number


def _saved(story: Story) -> list[Line]:
    return [line for line in story.of_groups("checkpoint") if line.event.get("status") == "saved"]


def _on_disk(story: Story, restore: Line) -> list[Lineage]:
    """What had been saved before a restore and was not behind the fence of an earlier rollback."""
    saved = {line.lineage for line in _saved(story) if surely_before(line, restore) and line.lineage is not None}
    grant = _grant_of(story, restore)
    for fence in story.of("lighthouse", "rollback"):
        to, quorum_id = lineage_of(fence.event, "to"), int(fence.event.get("quorum_id") or 0)
        if to is None or not _known_by(fence, restore, grant) or quorum_id == _quorum_id(story, restore):
            continue
        saved = {lineage for lineage in saved if not (lineage.step > to.step and lineage.quorum_id < quorum_id)}
    return sorted(saved)


def _quorum_id(story: Story, restore: Line) -> int:
    quorum = _quorum_of(story, restore)
    return 0 if quorum is None else int(quorum.event.get("quorum_id") or 0)


def _grant_of(story: Story, restore: Line) -> Line | None:
    """The lighthouse's own line of that quorum."""
    asked = _quorum_of(story, restore)
    if asked is None:
        return None
    granted = (g for g in story.of("lighthouse", "quorum") if g.event.get("attempt") == asked.event.get("attempt"))
    return next(granted, None)


def _quorum_of(story: Story, restore: Line) -> Line | None:
    """The quorum that asked for this restore."""
    own = (q for q in story.of(restore.writer, "quorum") if q.incarnation == restore.incarnation)
    before = [quorum for quorum in own if quorum.number < restore.number]
    return before[-1] if before else None
