"""Has the run gone on since it was told to go back (``checkpoint.load_step``)? Then a restart must not go back again.

A note in the checkpoint folder says what was asked, and which checkpoint was the newest then. A checkpoint newer
than that one was made after the request was met, so the newest counts again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

from checkpointing.plain import read_object
from checkpointing.retention import newest_first
from configs.words import SCRATCH, Lineage

_log = logging.getLogger(__name__)
NOTE = ".load-step.json"


def met(folder: Path, step: int, found: Iterable[Lineage]) -> bool:
    """Whether the request for ``step`` was met, and the run has saved since. Without a request the note is removed."""
    path = folder / NOTE
    if step < 0:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    asked, newest = _read(path)
    return asked == step and newest_first([*found, newest])[0] != newest


def noted(folder: Path, step: int) -> bool:
    """Whether an earlier start has taken up the request for ``step``."""
    return _read(folder / NOTE)[0] == step


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


def _read(path: Path) -> tuple[int | None, Lineage]:
    """(the step that was asked for, what was the newest then); a note that cannot be used is none, and is named."""
    try:
        note = read_object(path)
        asked, newest = note["load_step"], note["newest"]
        if type(asked) is not int or not isinstance(newest, str):
            raise ValueError("load_step or newest is of another type")
        return asked, Lineage.parse(newest)
    except FileNotFoundError:
        return None, SCRATCH
    except (OSError, ValueError, KeyError) as error:
        _log.warning("%s is passed over: %s", path, error)
        return None, SCRATCH
