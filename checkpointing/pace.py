"""How fast may a source give? One limit for all its connections together. Used by the state server."""

from __future__ import annotations

import threading
import time


class Pace:
    """Keeps all connections together to a rate. Thread-safe."""

    def __init__(self, rate: float | None) -> None:
        """``rate`` in bytes per second; None: unlimited."""
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0

    def pause(self, size: int) -> float:
        """Seconds to wait after ``size`` bytes, for the whole server to keep to the rate."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + size / self._rate
            return self._free - now
