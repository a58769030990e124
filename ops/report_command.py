"""``phalanx report RUN``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ops.console import Console
from ops.history import read_logs
from ops.report import read_report, text_of
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Read and tell."""
    del console
    report = read_report(read_logs(options.run))
    return Result(text=f"{options.run}: {report.steps} steps\n{text_of(report)}", data=report.as_json())
