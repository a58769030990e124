"""``phalanx checkpoint verify STEP_FOLDER|RUN``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.checkpoint_where import Where, checkpoints_at, named_like_a_step, step_at
from ops.console import Console
from ops.conversion import place
from ops.result import Result

if TYPE_CHECKING:
    from checkpointing.verifying import Verdict


def arguments(parser: argparse.ArgumentParser) -> None:
    """A checkpoint or a run."""
    what = "one checkpoint, a run folder or a folder of checkpoints; or the URL of one in an object store"
    parser.add_argument("folder", metavar="STEP_FOLDER|RUN", type=place, help=what)


def run(options: argparse.Namespace, console: Console) -> Result:
    """Check every byte of one checkpoint, or of every published one of a run. Exit 1 when one does not verify, 6 when
    there is nothing to check or the folder cannot be read, 2 when there is no such folder."""
    from checkpointing.verifying import verify_all  # heavy: torch

    rows = []
    for given in _places(options.folder):
        began = time.monotonic()
        with step_at(given) as path:
            verdict = verify_all(path, secret=secret_key())
        row = _row(verdict, given, seconds=time.monotonic() - began)
        rows.append(row)
        console.say(_line(row))
    bad = sum(not row["valid"] for row in rows)
    text = f"{bad} of {len(rows)} do not verify" if bad else f"{len(rows)} verified, every byte"
    code = Exit.CHECK_FAILED if bad else Exit.DONE
    return Result(code=code, text=text, data={"checkpoints": rows, "bad": bad})


def _places(given: str) -> Iterator[str]:
    """The checkpoints that are meant, newest first. Raises ExitRequest when there is none."""
    from checkpointing.manifest import MANIFEST  # heavy: torch

    if named_like_a_step(given) or (Path(given) / MANIFEST).exists():
        yield given
        return
    where = checkpoints_at(given)
    try:
        names = _stored(where.place) if where.remote else _in_folder(where)
    except OSError as error:
        raise ExitRequest(Exit.CHECKPOINT, f"{where.place} cannot be read: {error}") from error
    if not names:
        raise ExitRequest(Exit.CHECKPOINT, f"no checkpoints in {where.place}")
    for name in names:
        yield f"{where.place}/{name}"


def _in_folder(where: Where) -> list[str]:
    from checkpointing import folder as folders  # heavy: torch
    from checkpointing.retention import newest_first

    return [lineage.folder for lineage in newest_first(folders.candidates(Path(where.place)))]


def _stored(url: str) -> list[str]:
    """Those with a manifest: what has none may be being written, and is no checkpoint."""
    from checkpointing.manifest import MANIFEST  # heavy: torch
    from checkpointing.objects import ObjectPlace

    store = ObjectPlace(url, spool=Path(), secret=None)
    return [lineage.folder for lineage in store.candidates() if MANIFEST in store.objects(lineage)]


def _row(verdict: Verdict, where: str, *, seconds: float) -> dict[str, object]:
    manifest = verdict.manifest
    return {
        "name": verdict.path.name,
        "path": where,
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
