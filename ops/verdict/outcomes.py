"""What a step did follows from the step: its outcome is one of two words, its learning rate that of the schedule, and
its state is a new one.

A skipped step applied no gradients, so nobody measured them; and the digest is over the clocks too, which every step
moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from configs.words import Outcome
from ops.verdict.moments import surely_before
from ops.verdict.story import Invariant, Line, Story, Violation


def outcomes(story: Story) -> Iterator[Violation]:
    """Updated or skipped, and nothing else; only an update has a gradient norm."""
    for line in story.of_groups("commit"):
        if "outcome" not in line.event or "grad_norm" not in line.event:
            continue
        outcome, norm = line.event["outcome"], line.event["grad_norm"]
        if outcome not in (Outcome.UPDATED, Outcome.SKIPPED):
            yield Violation(Invariant.CLOCKS, f"{outcome!r} is no outcome of a step", line)
        elif (norm is None) is not (outcome == Outcome.SKIPPED):
            why = f"a step that was {outcome}, but its gradient norm is {norm}"
            yield Violation(Invariant.CLOCKS, why, line)


def learning_rates(story: Story) -> Iterator[Violation]:
    """Those of the schedule in the run folder's config: since the last launch, for it may have changed the schedule."""
    launches = story.of("launcher", "launch")
    if story.schedule is None or not launches:
        return
    for line in story.of_groups("commit"):
        step, lr = line.event.get("step"), line.event.get("lr")
        if step is None or lr is None or step < 1 or not surely_before(launches[-1], line):
            continue
        expected = story.schedule.at(step - 1)
        if not math.isclose(lr, expected, rel_tol=1e-9):
            why = f"step {step} was made with a learning rate of {lr}, but the schedule has {expected}"
            yield Violation(Invariant.CLOCKS, why, line)


def states_move(story: Story) -> Iterator[Violation]:
    """No two confirmed states have one digest."""
    seen: dict[str, Line] = {}
    for lineage in story.chain.lineages:
        line = next((line for line in story.commits.get(lineage, ()) if line.event.get("digest")), None)
        if line is None:
            continue
        first = seen.setdefault(line.event["digest"], line)
        if first is not line:
            why = (
                f"{lineage} has the digest of {first.event.get('lineage')} in {first.where}, though every step moves it"
            )
            yield Violation(Invariant.ONE_DIGEST, why, line)
