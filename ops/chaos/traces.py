"""The file of a spot trace: lines of ``seconds,group,join|leave``; ``#`` begins a comment.

Called by ``ops.chaos.reading``, which refuses a bad one, and by ``ops.chaos.schedule``.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

from configs.names import nearest
from configs.problems import Problem
from ops.chaos.fits import listed

MOVES = ("join", "leave")


@dataclasses.dataclass(frozen=True)
class Move:
    """A node that comes or goes, in seconds of the trace; what stands at 0 is so from the beginning."""

    seconds: float
    group: str
    what: str


def read_trace(path: Path, *, groups: int) -> tuple[list[Move], list[Problem]]:
    """The moves of a trace, and every line that is none or speaks of a group that the run does not have."""
    moves: list[Move] = []
    problems: list[Problem] = []
    known = [f"g{number}" for number in range(groups)]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(enumerate(csv.reader(file), 1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return [], [Problem(where=str(path), key="trace", expected=f"cannot be read: {error}")]
    for number, row in rows:
        if not row or row[0].startswith("#"):
            continue
        move = _move(row)
        if move is None:
            expected = "expected lines of seconds,group,join|leave"
            problems.append(
                Problem(where=f"{path}:{number}", key="trace", expected=expected, found=repr(",".join(row)))
            )
        elif move.group not in known:
            expected = f"expected {listed(known)}, the groups of this run"
            near = nearest(move.group, known)
            where = f"{path}:{number}"
            problems.append(Problem(where=where, key="group", expected=expected, found=repr(move.group), nearest=near))
        else:
            if (unlike := _unlike(move, moves)) is not None:
                problems.append(
                    Problem(where=f"{path}:{number}", key="trace", expected=unlike, found=repr(",".join(row)))
                )
            moves.append(move)
    if not moves and not problems:
        problems.append(Problem(where=str(path), key="trace", expected="expected moves: there are none"))
    return moves, problems


def _unlike(move: Move, before: list[Move]) -> str | None:
    """What was expected instead of a move that cannot follow those before it."""
    if before and move.seconds < before[-1].seconds:
        return f"expected the lines in order of time: {before[-1].seconds:g} s came before"
    last = next((one for one in reversed(before) if one.group == move.group), None)
    if last is not None and last.what == move.what:
        return f"expected {move.group} to {'leave' if move.what == 'join' else 'join'} first: it did {move.what} before"
    return None


def _move(row: list[str]) -> Move | None:
    try:
        seconds, group, what = (cell.strip() for cell in row)
        move = Move(float(seconds), group, what)
    except ValueError:  # other than three cells, or the first is no number
        return None
    return move if move.what in MOVES and math.isfinite(move.seconds) else None
