"""``phalanx checkpoint verify STEP_FOLDER|RUN``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.checkpoint_ls import checkpoint_folder
from ops.console import Console
from ops.conversion import folder_given
from ops.result import Result

if TYPE_CHECKING:
    from checkpointing.verifying import Verdict


def arguments(parser: argparse.ArgumentParser) -> None:
    """A checkpoint or a run."""
    parser.add_argument("folder", metavar="STEP_FOLDER|RUN", type=Path, help="one checkpoint, or a run folder")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Check every byte of one checkpoint, or of every published one of a run. Exit 1 when one does not verify, 6 when
    there is nothing to check or the folder cannot be read."""
    from checkpointing import folder as folders  # heavy: torch
    from checkpointing.manifest import MANIFEST
    from checkpointing.retention import newest_first
    from checkpointing.verifying import verify_all

    folder_given(options.folder)
    if (options.folder / MANIFEST).exists():
        paths = [options.folder]
    else:
        where, _ = checkpoint_folder(options.folder)
        try:
            there = folders.candidates(where)
        except OSError as error:
            raise ExitRequest(Exit.CHECKPOINT, f"{where} cannot be read: {error}") from error
        paths = [there[lineage] for lineage in newest_first(there)]
        if not paths:
            raise ExitRequest(Exit.CHECKPOINT, f"no checkpoints in {where}")
    rows = []
    for path in paths:
        began = time.monotonic()
        row = _row(verify_all(path, secret=secret_key()), seconds=time.monotonic() - began)
        rows.append(row)
        console.say(_line(row))
    bad = sum(not row["valid"] for row in rows)
    text = f"{bad} of {len(rows)} do not verify" if bad else f"{len(rows)} verified, every byte"
    code = Exit.CHECK_FAILED if bad else Exit.DONE
    return Result(code=code, text=text, data={"checkpoints": rows, "bad": bad})


def _row(verdict: Verdict, *, seconds: float) -> dict[str, object]:
    manifest = verdict.manifest
    return {
        "name": verdict.path.name,
        "path": str(verdict.path),
        "valid": not verdict.problems,
        "problems": list(verdict.problems),
        "step": manifest.clocks.step if manifest else None,
        "bytes": manifest.bytes if manifest else None,
        "files": len(manifest.files) if manifest else None,
        "seconds": seconds,
    }


def _line(row: dict[str, object]) -> str:
    if not row["valid"]:
        problems = row["problems"]
        assert isinstance(problems, list)
        return f"{row['name']}  BAD: " + "; ".join(problems)
    size = row["bytes"]
    assert isinstance(size, int)
    return f"{row['name']}  {size / 1e6:10.1f} MB  verified in {row['seconds']:.2f} s"
