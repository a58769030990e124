"""What a failpoint is called: ``GROUP:NAME[@[STEP][.PART]][#RANK]:ACTION``, as in ``g1:backward@20.1#0:kill``.

Only the syntax and its values; the trainer fires them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from configs.names import nearest

NAMES = (
    "build",
    "agree",
    "quorum_before",
    "quorum_after",
    "configure",
    "heal_send",
    "heal_recv",
    "data",
    "forward",
    "backward",
    "reduce_before",
    "reduce",
    "summary",
    "summary_sent",
    "vote_before",
    "vote_after",
    "optimizer",
    "save_stage",
    "save_write",
    "save_rename",
    "closing",
    "shutdown",
)
"""In the order in which a run passes them."""
PARTS = {
    "data": "microbatch",
    "forward": "microbatch",
    "backward": "microbatch",
    "reduce_before": "bucket",
    "reduce": "bucket",
    "heal_send": "percent",
    "heal_recv": "percent",
}
"""What PART counts. A microbatch is an id in the step's plan, a bucket one of the reduction, a percent one of the
state's chunks; the other names are passed once an attempt, save or incarnation and have no parts."""
DEFAULT_PERCENT = 50

WHOLE_RUN = frozenset(
    {
        *("agree", "quorum_before", "quorum_after", "configure", "heal_send", "heal_recv"),
        *("save_stage", "save_write", "save_rename", "closing", "shutdown"),
    }
)
"""Names that are passed with the last step as well: it is healed and saved, and the closing quorum comes after it."""

PLAIN_ACTIONS = ("kill", "hang", "raise", "nan", "flip", "corrupt", "truncate", "full")
VALUED_ACTIONS = ("stop", "delay", "exit")
ACTIONS = PLAIN_ACTIONS + VALUED_ACTIONS
"""``stop`` may stand without a value."""
ONLY_AT = {
    "nan": ("forward", "backward"),
    "flip": ("agree", "quorum_before", "quorum_after", "vote_before", "vote_after", "optimizer"),
    "corrupt": ("heal_send",),
    "truncate": ("heal_send",),
    "full": ("save_stage", "save_write", "save_rename"),
}
"""Actions that mean something at these names alone."""

_FORM = re.compile(
    r"(?P<group>[\w-]+):(?P<name>\w+)(?P<at>@(?P<step>\d+)?(?:\.(?P<part>\d+))?)?(?:#(?P<rank>\d+))?"
    r":(?P<action>[a-z]+)(?:=(?P<argument>.+))?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failpoint:
    """One fault to inject, once in a run."""

    group: str
    name: str
    step: int | None = None
    """The step being attempted, or saved; None: the first time the point is passed."""
    part: int | None = None
    """None: the first microbatch computed, the first bucket, half of the state."""
    rank: int = 0
    action: str
    argument: float | None = None
    """Seconds of a delay or of a stop (None: for ever), code of an exit."""

    def __str__(self) -> str:
        at = "" if self.step is None else f"@{self.step}"
        part = "" if self.part is None else f"{'' if at else '@'}.{self.part}"
        argument = "" if self.argument is None else f"={self.argument:g}"
        return f"{self.group}:{self.name}{at}{part}#{self.rank}:{self.action}{argument}"


class UnknownName(ValueError):
    """There is no such failpoint or action, or neither. ``choices``: what there is, for whoever tells of several to say
    it once; of a kind that is alike to something only that is named."""

    def __init__(self, unknown: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
        near = {kind: nearest(name, known) for kind, name, known in unknown}
        self.choices = [f"expected one of {', '.join(known)}" for kind, _, known in unknown if not near[kind]]
        told = [f"unknown {k} {name!r}" + (f" (did you mean {near[k]}?)" if near[k] else "") for k, name, _ in unknown]
        super().__init__("; ".join(told))


def last_step(name: str, steps: int) -> int:
    """The greatest STEP at which a run of ``steps`` steps passes a name. STEP counts what is committed by then: the
    first attempt is at step 0."""
    if name == "build":
        return 0
    return steps if name in WHOLE_RUN else steps - 1


def parse(text: str) -> Failpoint:
    """Raises ValueError that says what was expected."""
    match = _FORM.fullmatch(text)
    if match is None or match["at"] == "@":
        raise ValueError("expected GROUP:NAME[@[STEP][.PART]][#RANK]:ACTION, such as g1:backward@20.1#0:kill")
    name, action, part = match["name"], match["action"], match["part"]
    unknown = [
        (kind, written, known)
        for kind, written, known in (("failpoint", name, NAMES), ("action", action, ACTIONS))
        if written not in known
    ]
    if unknown:
        raise UnknownName(unknown)
    if part is not None and name not in PARTS:
        raise ValueError(f"{name} has no parts; only {', '.join(PARTS)} have")
    if part is not None and PARTS[name] == "percent" and int(part) > 100:
        raise ValueError(f"expected a percentage up to 100 for {name}")
    places = ONLY_AT.get(action, NAMES)
    if name not in places:
        raise ValueError(f"{action} acts in {_listed(places)} only")
    return Failpoint(
        group=match["group"],
        name=name,
        step=None if match["step"] is None else int(match["step"]),
        part=None if part is None else int(part),
        rank=int(match["rank"] or 0),
        action=action,
        argument=_argument(action, match["argument"]),
    )


def _argument(action: str, text: str | None) -> float | None:
    if action not in VALUED_ACTIONS:
        if text is not None:
            raise ValueError(f"{action} takes no value")
        return None
    if action == "exit":
        if text is None or not text.isdecimal() or int(text) > 255:
            raise ValueError("expected exit=CODE, 0 to 255")
        return float(text)
    if text is None and action == "stop":
        return None
    if text is None or not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"expected {'stop or ' if action == 'stop' else ''}{action}=SECONDS")
    return float(text)


def _listed(names: tuple[str, ...]) -> str:
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last
