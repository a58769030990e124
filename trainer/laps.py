"""What does each part of a rank's start take? Seconds since its process began, one part after the other.

Told in the ``start`` event, so that a recovery can be taken apart (``phalanx bench recovery``).
"""

from __future__ import annotations

import time


class Laps:
    """A stopwatch that is read at the end of each part."""

    def __init__(self) -> None:
        self.began_t = time.time()
        """Unix time at which the rank began."""
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def done(self, part: str) -> None:
        """``part`` ends now; what follows belongs to the next. A part that comes twice is added up."""
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
