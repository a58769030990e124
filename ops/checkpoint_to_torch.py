"""``phalanx checkpoint to-torch STEP_FOLDER OUT.pt``."""

from __future__ import annotations

import argparse

from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.checkpoint_where import HELP, METAVAR, step_at
from ops.console import Console
from ops.conversion import local_path, place
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A checkpoint and a file."""
    parser.add_argument("step_folder", metavar=METAVAR, type=place, help=HELP)
    parser.add_argument("out", metavar="OUT.pt", type=local_path, help="the file to write; it must not exist")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Convert. Exit 2 for paths that cannot be used, 6 for a checkpoint that does not verify."""
    from checkpointing.errors import CheckpointError  # heavy: torch
    from checkpointing.tools import to_torch

    del console
    with step_at(options.step_folder) as step_folder:
        try:
            size = to_torch(step_folder, options.out, secret=secret_key())
        except OSError as error:
            raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
        except CheckpointError as error:
            raise ExitRequest(Exit.CHECKPOINT, str(error)) from error
    return Result(text=f"{options.out}: {size / 1e6:.1f} MB", data={"out": str(options.out), "bytes": size})
