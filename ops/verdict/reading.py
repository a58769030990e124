"""Which lines of a log can a judge use, and which are damaged?

Honest are whole events of the right types, and the torn line of a writer that died inside it: the last one, or one that
the log's next writer has ended before its own first event. Anything else was not written by a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from configs.run_folder import Event, parse_event
from ops.soundness import fault_of

QUOTED = 200
"""Bytes of a line that is no event."""
_BEGINNING = b'{"t":'
"""Of every line that is written."""
_FIRST = ("lighthouse", "launch")
"""What a lighthouse and a launcher write first."""


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, Event, str | None]]:
    """The number of each line, from 1, its event, and why it cannot be used (None: it can). Torn lines that are honest
    are passed over; one that is no event is told of as ``{"line": ...}``."""
    written = [(number, line, parse_event(line)) for number, line in enumerate(lines, 1) if line.strip()]
    newest = 0
    for place, (number, line, event) in enumerate(written):
        last = place + 1 == len(written)
        if last and not line.endswith(b"\n") and _may_be_torn(line, whole=event is not None):
            continue
        if event is not None:
            yield number, event, fault_of(event)
            newest = max(newest, _incarnation(event))
        elif last or not _may_be_torn(line) or not _by_another(written[place + 1][2], newest):
            yield number, {"line": line[:QUOTED].decode(errors="replace").strip()}, "no event"


def why_unusable(event: Event) -> str | None:
    """Why an event in memory cannot be used; None where it can."""
    whole = isinstance(event.get("event"), str) and isinstance(event.get("t"), int | float)
    return fault_of(event) if whole else "no event"


def _may_be_torn(line: bytes, *, whole: bool = False) -> bool:
    """It begins as every event does, and stops."""
    if not line.startswith(_BEGINNING[: len(line.strip())]):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return whole


def _by_another(event: Event | None, newest: int) -> bool:
    """It comes from another process than all lines before it."""
    return event is not None and (event["event"] in _FIRST or _incarnation(event) > newest)


def _incarnation(event: Event) -> int:
    """That of a group's own event; the logs of lighthouse and launcher speak of others'."""
    number = event.get("incarnation")
    return number if isinstance(number, int) else 0
