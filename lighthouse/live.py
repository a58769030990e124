"""What does the live page show? The present of the run in words and rows, and the news since it was last looked at.

The present comes from the gateway's status, the past from the history; nothing is decided here and nothing is changed.
Called by feed.py a few times a second, and only while somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lighthouse.chronicle import Chronicle
from lighthouse.history import Lane

LONG_WAIT_S = 2.0
"""A quorum that takes longer is worth saying so: in a run that goes well the others ask sooner."""
_FEW = 50
_NAMED = 4

Status = Mapping[str, Any]


class Live:
    """The live page's document, and what changes in it."""

    def __init__(self, status: Callable[[], Status], past: Chronicle) -> None:
        """``status`` gives the document of status.py."""
        self._status = status
        self._past = past
        self._n = 0
        self._head: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    @property
    def id(self) -> str:
        """Names the moment of the last document."""
        return f"{self._head.get('epoch', 0)}-{self._n}"

    def whole(self) -> dict[str, Any]:
        """Everything, for somebody who has just come."""
        head, rows = self._present()
        return {"now": self._past.wall(), "head": head, "rows": list(rows.values()), **self._past.history.whole()}

    def news(self) -> dict[str, Any] | None:
        """What has changed since the last call; None when nothing has."""
        history = self._past.history
        head, rows = self._present()
        found: dict[str, Any] = history.since(self._n)
        changed = [row for group, row in rows.items() if self._rows.get(group) != row]
        if changed:
            found["rows"] = changed
        if head != self._head:
            found["head"] = head
        self._n, self._head, self._rows = history.n, head, rows
        return {"now": self._past.wall(), **found} if found else None

    def pause_s(self) -> float:
        """How long to wait for the next news: four times a second, more seldom when there are many groups."""
        return 0.25 * max(1.0, len(self._rows) / _FEW)

    def _present(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        status, lanes = self._status(), self._past.history.lanes
        rows = {}
        for group in status["groups"]:
            lane = lanes.get(group["group"])
            rows[group["group"]] = _row(group, status, Lane.GONE if lane is None else lane.lane)
        tone, text = headline(status)
        head = {name: status[name] for name in ("run", "epoch", "steps", "granted", "ended")}
        head |= {"quorum": _quorum(status["quorum"]), "tone": tone, "text": text, "waits": waits(status)}
        return head, rows


def _quorum(quorum: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the page says of it: ids as text, for a browser's numbers end at 2^53."""
    if quorum is None:
        return None
    return {"quorum": quorum["quorum"], "participants": len(quorum["participants"])}


def _row(group: Mapping[str, Any], status: Status, lane: Lane) -> dict[str, Any]:
    """One group, in values that stay the same while nothing happens. Ages are whole seconds."""
    alive, quorum, ended = group["alive"], status["quorum"], status["ended"] is not None
    if not alive and lane is not Lane.UNSEEN:
        lane = Lane.GONE
    holds = quorum is not None and group["group"] in quorum["participants"] and (lane is Lane.TRAINING or ended)
    return {
        "group": group["group"],
        "incarnation": group["incarnation"],
        "lane": "done" if lane is Lane.GONE and _saw_the_end(group["group"], status) else lane.value,
        "phase": group["phase"] if alive else "",
        "age": int(group["seconds_in_phase"]) if alive else 0,
        "step": max(group["step"], quorum["step"] if holds else 0),
        "silent": int(group["seconds_silent"] or 0),
        "host": group["host"],
        "ranks": len(group["ranks"]),
    }


def _saw_the_end(group: str, status: Status) -> bool:
    """Whether a group that is gone was in the quorum that closed the run; a restarted lighthouse remembers none."""
    quorum = status["quorum"]
    return status["ended"] is not None and (quorum is None or group in quorum["participants"])


def waits(status: Status) -> str:
    """What the next quorum waits for, once that is worth a word; empty before."""
    if status["ended"] is not None or not status["waits_for"]:
        return ""
    if status["quorum"] is None or status["seconds_waited"] >= LONG_WAIT_S or not _alive(status):
        return str(status["waits_for"])
    return ""


def headline(status: Status) -> tuple[str, str]:
    """The run in one line: (tone, words). The tone is one of good, less, wait, done."""
    if status["run"] is None:
        return "wait", "No group has joined yet"
    if status["ended"] is not None:
        return "done", f"The run has ended at step {_step(status['ended'])}"
    alive = _alive(status)
    if not alive:
        return "wait", "No group is alive"
    quorum = status["quorum"]
    if quorum is None:
        return "wait", f"{_of(len(alive), status)} alive, no quorum yet"
    seated = [group for group in quorum["participants"] if group in alive]
    healing = [group for group in seated if group in quorum["healing"]]
    train = len(seated) - len(healing)
    parts = [f"{_of(train, status)} {'trains' if train == 1 else 'train'}"]
    if healing:
        parts.append(f"{', '.join(healing[:_NAMED])} {'heals' if len(healing) == 1 else 'heal'}")
    parts.append(f"step {quorum['step']}" + (f" of {status['steps']}" if status["steps"] else ""))
    parts.append(f"attempt {quorum['attempt'] & 0xFFFFFFFF}")
    tone = "wait" if waits(status) else "good" if train >= _expected(status) else "less"
    return tone, " · ".join(parts)


def _alive(status: Status) -> set[str]:
    return {group["group"] for group in status["groups"] if group["alive"]}


def _expected(status: Status) -> int:
    return max(status["groups_configured"] or 0, len(_alive(status)))


def _of(count: int, status: Status) -> str:
    expected = _expected(status)
    return f"{count} of {expected} {'group' if expected == 1 else 'groups'}"


def _step(lineage: str) -> str:
    return lineage.partition(":")[0]
