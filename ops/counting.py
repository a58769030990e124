"""Numbers of things, for people."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 death``, ``2 deaths``; ``many`` where an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"
