"""What came before what, when the clocks of hosts differ?

Every event is put on the lighthouse's clock as well as the quorums allow (``ops.clocks``). What two writers did is in
order only where their times differ by more than both clocks may be wrong. Clocks of one machine are never wrong.
"""

from __future__ import annotations

import dataclasses

from ops.clocks import moved_by, read_clocks
from ops.verdict.story import Line, Story


def on_one_clock(story: Story) -> Story:
    """The same story with all times on the lighthouse's clock; each line keeps its event as it is written."""
    clocks = read_clocks(story.logs)
    by_writer = {}
    for writer, lines in story.by_writer.items():
        told = ((line, clocks.of(writer, line.event)) for line in lines)
        by_writer[writer] = tuple(
            Line(writer, line.number, moved_by(line.event, clock.ahead_s), written=line.event, unsure_s=clock.unsure_s)
            for line, clock in told
        )
    return dataclasses.replace(story, by_writer=by_writer)


def surely_before(first: Line, second: Line) -> bool:
    """Whatever the clocks are: of one writer's lines the times tell, for what is told late tells when it was."""
    unsure = 0.0 if first.writer == second.writer else first.unsure_s + second.unsure_s
    return first.t + unsure < second.t
