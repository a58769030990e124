"""The end of a run is that of its history; nothing that was confirmed is disowned later."""

from __future__ import annotations

from collections.abc import Iterator

from configs.words import Exit
from ops.history import confirmed_chain
from ops.verdict.story import Invariant, Line, Story, Violation


def the_end(story: Story) -> Iterator[Violation]:
    """It names the last confirmed state; nothing comes after it unless somebody joined again; and a launcher that ended
    with 0 has one."""
    told = story.of("lighthouse", "lighthouse", "join", "confirmed", "rollback", "quorum", "end")
    ended: Line | None = None
    for place, line in enumerate(told):
        match line.event["event"]:
            case "end":
                ended, last = line, confirmed_chain(x.event for x in told[:place]).end
                if line.lineage != last:
                    why = f"the run ends with {line.event.get('lineage')}, but {last} was confirmed last"
                    yield Violation(Invariant.ONE_HISTORY, why, line)
            case "lighthouse" | "join":
                ended = None
            case name if ended is not None:
                yield Violation(Invariant.ONE_HISTORY, f"a {name} after the end in {ended.where}", line)
    yield from _complete(story)


def _complete(story: Story) -> Iterator[Violation]:
    """The launcher's last word is that all is done: then the lighthouse has recorded the end."""
    words = [line for line in story.of("launcher", "launch", "exit") if not line.event.get("group")]
    if not words or words[-1].event["event"] != "exit" or words[-1].event.get("code") != Exit.DONE:
        return
    ends = story.of("lighthouse", "end")
    if story.of("lighthouse") and (not ends or ends[-1].lineage != story.chain.end):
        why = f"the launch is done, but no end at {story.chain.end} was recorded"
        yield Violation(Invariant.ONE_HISTORY, why, words[-1])


def disowned(story: Story) -> Iterator[Violation]:
    """A commit is orphaned where no quorum confirmed it, or by who has to take another state instead."""
    for line in story.of_groups("orphaned"):
        if line.lineage in story.chain.lineages and goes_on(story, line):
            why = f"{line.lineage} is told orphaned, but is of the confirmed history"
            yield Violation(Invariant.ONE_HISTORY, why, line)


def goes_on(story: Story, told: Line) -> bool:
    """After this line its incarnation commits with the state that it had: it neither heals nor restores before that."""
    own = story.of(told.writer, "commit", "heal", "restore")
    after = (line for line in own if line.number > told.number and line.incarnation == told.incarnation)
    following = next(after, None)
    return following is not None and following.event["event"] == "commit"
