"""What is wrong with a config, said so that its writer can mend it without reading code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

COMMAND_LINE = "command line"
SYNTAX = "(syntax)"
"""Stands for a key where the text is no TOML."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing to mend: where it was written, under which key, and what was expected there."""

    where: str
    """The file, or ``command line``; ``defaults`` for a value nobody wrote."""
    key: str
    expected: str
    found: str = ""
    nearest: str | None = None
    """The known name that is most like what was written."""

    def __str__(self) -> str:
        found = f", found {self.found}" if self.found else ""
        hint = f" (did you mean {self.nearest}?)" if self.nearest else ""
        return f"{self.where}: {self.key}: {self.expected}{found}{hint}"


class ConfigError(Exception):
    """Raised with every problem of a config at once. Commands end with exit code 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
