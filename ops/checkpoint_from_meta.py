"""``phalanx checkpoint from-meta META_FOLDER OUT_FOLDER --model llama3 --flavor 8B``."""

from __future__ import annotations

import argparse

from ops.console import Console
from ops.conversion import import_arguments, import_command
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A folder of original weights, a checkpoint, a model."""
    import_arguments(parser, what="original weights: consolidated.*.pth and params.json", metavar="META_FOLDER")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Import."""
    return import_command("original", options, console)
