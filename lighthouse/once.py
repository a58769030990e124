"""How is the same answer given to many without making it for each?

A quorum has one grant, and every group gets the same message of it: to make it anew for each of n groups, with n
members in it, would cost the square of n. Used by the gateway's service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Argument = TypeVar("Argument")
Made = TypeVar("Made")


class Once(Generic[Argument, Made]):
    """``make``, not called again for the very object that it was called with last."""

    def __init__(self, make: Callable[[Argument], Made]) -> None:
        self._make = make
        self._last: tuple[Argument, Made] | None = None

    def __call__(self, argument: Argument) -> Made:
        if self._last is None or self._last[0] is not argument:
            self._last = argument, self._make(argument)
        return self._last[1]
