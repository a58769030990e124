"""``phalanx chaos judge RUN``: the verdict on a run that is over, from its event logs.

A run of a scenario has the scenario's limits in its folder; they count as they did for ``phalanx chaos run``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from configs.words import Exit
from ops.console import Console
from ops.result import Result
from ops.verdict.judge import judge
from ops.verdict.kept import Kept, kept_in
from ops.verdict.story import read_story


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Exit 0 where every invariant holds, 1 where one does not, 2 where there are no logs."""
    del console
    story, kept = read_story(options.run), kept_in(options.run)
    verdict = judge(story) if kept is None else kept.verdict(story)
    judged = None if kept is None else {"scenario": kept.scenario, "run": kept.run, "seed": kept.seed}
    return Result(
        code=Exit.DONE if verdict.holds else Exit.CHECK_FAILED,
        text=f"{verdict.text()}\n{_by_what(kept)}",
        data={**verdict.as_json(), "limits_of": judged},
    )


def _by_what(kept: Kept | None) -> str:
    if kept is None:
        return "judged by what holds for every run; it is no run of a scenario, whose limits would count too"
    return f"judged by what holds for every run and by the limits of {kept.scenario}, run {kept.run}, seed {kept.seed}"
