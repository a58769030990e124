"""Event logs made by hand, for the readers of event logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ops.history import Logs

Event = dict[str, Any]


def lineage(step: int, epoch: int = 1) -> str:
    return f"{step}:{epoch}.{step}"


def commit(step: int, shares: Mapping[str, list[int]], *, t: float | None = None, **fields: Any) -> Event:
    """A commit record; the quorum id's running number is the step unless ``lineage`` says another."""
    base = {
        "t": float(step) if t is None else t,
        "event": "commit",
        "step": step,
        "lineage": lineage(step),
        "participants": sorted(shares),
        "healing": [],
        "shares": dict(shares),
        "outcome": "updated",
        "samples": 2 * sum(len(ids) for ids in shares.values()),
        "tokens": 16,
        "loss": 10.0 - step,
        "digest": None,
        "seconds": 0.5,
    }
    return base | fields


def confirmed(step: int, *, name: str | None = None) -> Event:
    return {"t": step + 0.5, "event": "confirmed", "step": step, "lineage": name or lineage(step)}


def logs(lighthouse: Iterable[Event], launcher: Iterable[Event] = (), **groups: Iterable[Event]) -> Logs:
    return Logs({"lighthouse": list(lighthouse), "launcher": list(launcher), **{g: list(e) for g, e in groups.items()}})


def write(folder: Path, writer: str, events: Iterable[Event], *, torn: str = "") -> None:
    path = folder / "events" / f"{writer}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + torn)
