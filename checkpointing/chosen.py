"""Has the run gone on since it was told to go back (``checkpoint.load_step``)? Then a restart must not go back again.

A note in the checkpoint folder says what was asked, and which checkpoint was the newest then. A checkpoint newer
than that one was made after the request was met, so the newest counts again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from checkpointing.retention import newest_first
from configs.words import SCRATCH, Lineage

NOTE = ".load-step.json"


def met(folder: Path, step: int, found: Iterable[Lineage]) -> bool:
    """Whether the request for ``step`` was met, and the run has saved since. Without a request the note is removed."""
    path = folder / NOTE
    if step < 0:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    try:
        note = json.loads(path.read_text())
        newest = Lineage.parse(note["newest"])
        same = note["load_step"] == step
    except (OSError, ValueError, KeyError, TypeError):
        return False
    newer = newest_first([*found, newest])
    return bool(same) and newer[0] != newest


def noted(folder: Path, step: int) -> bool:
    """Whether an earlier start has taken up the request for ``step``."""
    try:
        return bool(json.loads((folder / NOTE).read_text())["load_step"] == step)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remember(folder: Path, step: int, found: Iterable[Lineage]) -> None:
    """Note the request and what is newest as it is made; an earlier note of the same request stays. Raises OSError."""
    path = folder / NOTE
    if noted(folder, step):
        return
    if not folder.is_dir():
        folder.mkdir(parents=True)
    unfinished = path.with_name(f"{NOTE}.new")
    unfinished.write_text(json.dumps({"load_step": step, "newest": str(newest_first([*found, SCRATCH])[0])}))
    unfinished.replace(path)
