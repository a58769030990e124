"""What is a running job doing, in lines that people read?

One line per step, made from the first commit record of it that any group wrote: step, loss, tokens per second, quorum,
and what just happened. A pure state machine over events; it is fed by the launcher's main thread.
"""

from __future__ import annotations

import dataclasses

from configs.run_folder import Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line, and where it leaves the bar."""

    text: str
    step: int
    short: str


class Narrator:
    """Turns events into lines."""

    def __init__(self, *, steps: int, every: int) -> None:
        self._steps = steps
        self._every = every
        self._told: set[str] = set()
        self._notes: list[str] = []
        self._absent: dict[str, int] = {}

    def take(self, writer: str, event: Event) -> Line | None:
        """The line that an event is worth, if any."""
        name = event.get("event")
        if name == "commit":
            self._welcome(writer, event)
            return self._commit(event)
        if name == "export":
            step, text = int(event.get("step", 0)), f"{_size(event.get('bytes'))} exported to {event.get('folder')}"
            return Line(text=text, step=step, short="exported")
        note = _note(writer, event)
        if name == "exit" and writer == "launcher" and event.get("group"):
            self._absent[str(event["group"])] = int(event.get("incarnation") or 0)
        if note is not None and note not in self._notes:
            self._notes.append(note)
        return None

    def _welcome(self, writer: str, event: Event) -> None:
        """Note a successor's first commit with a share of its own."""
        died = self._absent.get(writer)
        if died is not None and int(event.get("incarnation") or 0) > died and (event.get("shares") or {}).get(writer):
            del self._absent[writer]
            self._notes.append(f"{writer} is back with a share")

    def _commit(self, event: Event) -> Line | None:
        lineage = str(event.get("lineage"))
        if lineage in self._told:
            return None
        self._told.add(lineage)
        step = int(event.get("step", 0))
        notes = self._notes
        if not notes and step % self._every and step not in (1, self._steps):
            return None
        self._notes = []
        return Line(text=self._text(event, step, notes), step=step, short=_short(event))

    def _text(self, event: Event, step: int, notes: list[str]) -> str:
        healing = set(event.get("healing") or ())
        quorum = "+".join(f"{g}(heals)" if g in healing else str(g) for g in event.get("participants") or ())
        width = len(str(self._steps))
        happened = f"   {'; '.join(notes)}" if notes else ""
        skipped = "  skipped" if event.get("outcome") == "skipped" else ""
        return f"step {step:>{width}}/{self._steps}  {_short(event)}  quorum {quorum}{skipped}{happened}"


def _short(event: Event) -> str:
    loss, tokens, seconds = event.get("loss"), event.get("tokens"), event.get("seconds")
    shown = "loss      -" if loss is None else f"loss {float(loss):6.3f}"
    speed = f"  {float(tokens) / float(seconds):>8,.0f} tok/s" if tokens and seconds else ""
    return shown + speed


def _note(writer: str, event: Event) -> str | None:
    """What an event means to somebody who watches."""
    group = event.get("group") or writer
    match event.get("event"):
        case "discard":
            return f"{group} discarded an attempt ({event.get('reason')})"
        case "heal":
            sources = "+".join(map(str, event.get("sources") or ())) or "a peer"
            took = float(event.get("seconds") or 0)
            return f"{group} healed from {sources}: {_size(event.get('bytes'))} in {took:.2f} s"
        case "restore":
            if event.get("source") == "scratch":
                return f"{group} starts from {event.get('weights') or 'the seed'}"
            return f"{group} restored step {event.get('step')} from {event.get('source', 'disk')}"
        case "departure":
            return f"{group} {event.get('cause')}"
        case "rollback":
            return f"rolled back from {event.get('from')} to {event.get('to')}"
        case "fault":
            whom = f"{event['group']} at {event.get('failpoint')}" if event.get("group") else event.get("failpoint")
            return f"fault: {event.get('action')} {whom}"
        case "divergence":
            return f"divergence of {'+'.join(map(str, event.get('groups') or ()))}"
        case "checkpoint" if event.get("status") == "failed":
            return f"checkpoint of step {event.get('step')} failed"
        case _:
            return None


def _size(count: object) -> str:
    value = float(count) if isinstance(count, int | float) else 0.0
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
