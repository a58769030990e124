"""``phalanx ledger RUN``."""

from __future__ import annotations

import argparse
from pathlib import Path

from configs.words import Exit
from ops.console import Console
from ops.history import read_logs
from ops.ledger import read_ledger
from ops.report import ledger_text
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Exit 0 where the ledger holds, 1 where it does not, 2 where there is none."""
    del console
    ledger = read_ledger(read_logs(options.run))
    code = Exit.DONE if ledger.holds else Exit.CHECK_FAILED
    return Result(code=code, text=ledger_text(ledger), data=ledger.as_json())
