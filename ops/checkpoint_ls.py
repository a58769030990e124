"""``phalanx checkpoint ls RUN``."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from configs.load import ConfigError, parse_text
from configs.names import EACH_GROUP
from configs.run_folder import RunFolder
from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or a folder of checkpoints")


def run(options: argparse.Namespace, console: Console) -> Result:
    """List them, newest first, then those that a start would pass over, with the reason."""
    from checkpointing.errors import CheckpointError  # heavy: torch
    from checkpointing.tools import Row, list_checkpoints

    del console
    if not options.run.is_dir():
        raise ExitRequest(Exit.BAD_CONFIG, f"{options.run}: no such folder")
    folder = checkpoint_folder(options.run)
    try:
        rows = list_checkpoints(folder, secret=secret())
    except CheckpointError as error:
        raise ExitRequest(Exit.CHECKPOINT, str(error)) from error

    def line(row: Row) -> str:
        size = "" if row.bytes is None else f"  {row.bytes / 1e6:10.1f} MB"
        return f"{row.name}{size}  {row.writer or ''}" if row.valid else f"{row.name}  passed over: {row.reason}"

    text = "\n".join(map(line, rows)) or f"no checkpoints in {folder}"
    return Result(text=text, data={"folder": str(folder), "checkpoints": [dataclasses.asdict(row) for row in rows]})


def checkpoint_folder(run: Path) -> Path:
    """Where the checkpoints of a run folder lie: as its config says; the folder itself where it has no config."""
    config = RunFolder(run).config
    if not config.exists():
        return run
    try:
        folder = parse_text(config.read_text(), where=str(config)).checkpoint.folder
    except ConfigError as error:
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
    if EACH_GROUP in folder:
        there = ", ".join(map(str, sorted(run.glob(folder.replace(EACH_GROUP, "*"))))) or "none yet"
        raise ExitRequest(Exit.BAD_CONFIG, f"each group of {run} has a folder of its own; name one: {there}")
    return run / folder


def secret() -> bytes | None:
    """The key of keyed digests, where the environment has one."""
    text = os.environ.get("PHALANX_SECRET")
    return text.encode() if text else None
