"""``phalanx checkpoint ls RUN``."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.checkpoint_where import Where, checkpoints_at, named_like_a_step
from ops.console import Console
from ops.conversion import place
from ops.result import Result

if TYPE_CHECKING:
    from checkpointing.tools import Row


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder."""
    parser.add_argument("run", metavar="RUN", type=place, help="a run folder, a folder of checkpoints, or its URL")


def run(options: argparse.Namespace, console: Console) -> Result:
    """List them, newest first, then those that a start would pass over, with the reason. Exit 2 when there is no such
    folder or it is none of ours, 6 when it cannot be read."""
    from checkpointing.errors import CheckpointError  # heavy: torch
    from checkpointing.tools import Keeping, list_checkpoints, list_objects

    del console
    if named_like_a_step(options.run):
        raise ExitRequest(Exit.BAD_CONFIG, f"{options.run} is one checkpoint: list the folder it is in, or verify it")
    where = checkpoints_at(options.run)
    keeping = Keeping(where.section.keep_latest_k, where.section.keep_every) if where.section else None
    try:
        if where.remote:
            rows = list_objects(where.place, secret=secret_key(), keeping=keeping)
        else:
            rows = list_checkpoints(Path(where.place), secret=secret_key(), keeping=keeping)
    except CheckpointError as error:
        raise ExitRequest(Exit.CHECKPOINT, str(error)) from error
    if not rows:
        _must_be_ours(where)
    text = "\n".join(map(_line, rows)) or f"no checkpoints in {where.place}"
    return Result(text=text, data={"folder": where.place, "checkpoints": [dataclasses.asdict(row) for row in rows]})


def _must_be_ours(where: Where) -> None:
    """A run that has saved nothing yet is an empty list; a folder full of other things is a mistake."""
    from checkpointing.folder import ours  # heavy: torch

    if where.section is None and not where.remote:
        others = sorted(path.name for path in Path(where.place).iterdir() if not ours(path.name))
        if others:
            raise ExitRequest(
                Exit.BAD_CONFIG,
                f"{where.place} is no run folder and holds no checkpoints: no config.toml and nothing named "
                f"step-STEP-EPOCH.N, but {', '.join(others[:3])}{' ...' if len(others) > 3 else ''}",
            )


def _line(row: Row) -> str:
    size = "" if row.bytes is None else f"{row.bytes / 1e6:,.1f} MB"
    if not row.valid:
        return f"{row.name:<32}  {size:>12}  passed over: {row.reason}"
    when = "" if row.time is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    kept = f"  kept: {row.kept}" if row.kept else ""
    return f"{row.name:<32}  {size:>12}  {when}  {row.writer or '':<8}{kept}"
