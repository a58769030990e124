"""``phalanx checkpoint ls RUN``."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.load import ConfigError, parse_text
from configs.names import EACH_GROUP
from configs.run_folder import RunFolder
from configs.schema_run import Checkpoint
from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.result import Result

if TYPE_CHECKING:
    from checkpointing.tools import Row


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or a folder of checkpoints")


def run(options: argparse.Namespace, console: Console) -> Result:
    """List them, newest first, then those that a start would pass over, with the reason."""
    from checkpointing.errors import CheckpointError  # heavy: torch
    from checkpointing.tools import Keeping, list_checkpoints

    del console
    if not options.run.is_dir():
        raise ExitRequest(Exit.BAD_CONFIG, f"{options.run}: no such folder")
    folder, config = checkpoint_folder(options.run)
    keeping = Keeping(config.keep_latest_k, config.keep_every) if config else None
    try:
        rows = list_checkpoints(folder, secret=secret_key(), keeping=keeping)
    except CheckpointError as error:
        raise ExitRequest(Exit.CHECKPOINT, str(error)) from error
    text = "\n".join(map(_line, rows)) or f"no checkpoints in {folder}"
    return Result(text=text, data={"folder": str(folder), "checkpoints": [dataclasses.asdict(row) for row in rows]})


def checkpoint_folder(run: Path) -> tuple[Path, Checkpoint | None]:
    """Where the checkpoints of a run folder lie, and its config's section; the folder itself where it has no config."""
    config = RunFolder(run).config
    if not config.exists():
        return run, None
    try:
        section = parse_text(config.read_text(), where=str(config)).checkpoint
    except ConfigError as error:
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
    if EACH_GROUP in section.folder:
        there = ", ".join(map(str, sorted(run.glob(section.folder.replace(EACH_GROUP, "*"))))) or "none yet"
        raise ExitRequest(Exit.BAD_CONFIG, f"each group of {run} has a folder of its own; name one: {there}")
    return run / section.folder, section


def _line(row: Row) -> str:
    size = "" if row.bytes is None else f"{row.bytes / 1e6:,.1f} MB"
    if not row.valid:
        return f"{row.name:<32}  {size:>12}  passed over: {row.reason}"
    when = "" if row.time is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    kept = f"  kept: {row.kept}" if row.kept else ""
    return f"{row.name:<32}  {size:>12}  {when}  {row.writer or '':<8}{kept}"
