"""What does a command come to? An exit code, an object for scripts, a text for people."""

from __future__ import annotations

import dataclasses
from typing import Any

from configs.words import Exit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """``data`` is what ``--json`` prints (with ``exit`` added), ``text`` what a person reads."""

    code: int = Exit.DONE
    text: str = ""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)


class UsageError(Exception):
    """The command line cannot be understood, or asks for what does not exist. Exit code 2."""
