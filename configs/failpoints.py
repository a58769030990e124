"""What a failpoint is called: ``GROUP:NAME[@STEP[.MICROBATCH]][#RANK]:ACTION``, as in ``g1:backward@20.1#0:kill``.

Only the syntax and its values; the trainer fires them.
"""

from __future__ import annotations

import dataclasses
import re

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
)
"""In the order in which a run passes them."""
MICROBATCH_NAMES = ("data", "forward", "backward")
"""Passed once for every microbatch; the others once an attempt, save or incarnation."""

PLAIN_ACTIONS = ("kill", "stop", "hang", "raise", "nan")
VALUED_ACTIONS = ("delay", "exit")
ACTIONS = PLAIN_ACTIONS + VALUED_ACTIONS

_FORM = re.compile(
    r"(?P<group>[\w-]+):(?P<name>\w+)(?:@(?P<step>\d+)(?:\.(?P<microbatch>\d+))?)?(?:#(?P<rank>\d+))?"
    r":(?P<action>[a-z]+)(?:=(?P<argument>.+))?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failpoint:
    """One fault to inject, once in a run."""

    group: str
    name: str
    step: int | None = None
    """The step being attempted; None: the first time the point is passed."""
    microbatch: int | None = None
    """Its id in the step's plan; None: the first one computed."""
    rank: int = 0
    action: str
    argument: float | None = None
    """Seconds of a delay, code of an exit."""

    def __str__(self) -> str:
        step = "" if self.step is None else f"@{self.step}"
        microbatch = "" if self.microbatch is None else f".{self.microbatch}"
        argument = "" if self.argument is None else f"={self.argument:g}"
        return f"{self.group}:{self.name}{step}{microbatch}#{self.rank}:{self.action}{argument}"


def parse(text: str) -> Failpoint:
    """Raises ValueError that says what was expected."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError("expected GROUP:NAME[@STEP[.MICROBATCH]][#RANK]:ACTION, such as g1:backward@20.1#0:kill")
    name, action, argument = match["name"], match["action"], match["argument"]
    if name not in NAMES:
        raise ValueError(f"unknown failpoint {name!r}{_hint(name, NAMES)}; expected one of {', '.join(NAMES)}")
    if action not in ACTIONS:
        raise ValueError(f"unknown action {action!r}{_hint(action, ACTIONS)}; expected one of {', '.join(ACTIONS)}")
    if match["microbatch"] is not None and name not in MICROBATCH_NAMES:
        raise ValueError(f"{name} has no microbatch; only {', '.join(MICROBATCH_NAMES)} have")
    if action == "nan" and name not in ("forward", "backward"):
        raise ValueError("nan acts in forward and backward only")
    return Failpoint(
        group=match["group"],
        name=name,
        step=None if match["step"] is None else int(match["step"]),
        microbatch=None if match["microbatch"] is None else int(match["microbatch"]),
        rank=int(match["rank"] or 0),
        action=action,
        argument=_argument(action, argument),
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
    if text is None or not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError("expected delay=SECONDS")
    return float(text)


def _hint(name: str, known: tuple[str, ...]) -> str:
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""
