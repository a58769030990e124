"""``phalanx chaos judge RUN``: the verdict on a run that is over, from its event logs."""

from __future__ import annotations

import argparse
from pathlib import Path

from configs.words import Exit
from ops.console import Console
from ops.result import Result
from ops.verdict.judge import judge
from ops.verdict.story import read_story


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Exit 0 where every invariant holds, 1 where one does not, 2 where there are no logs."""
    del console
    verdict = judge(read_story(options.run))
    return Result(code=Exit.DONE if verdict.holds else Exit.CHECK_FAILED, text=verdict.text(), data=verdict.as_json())
