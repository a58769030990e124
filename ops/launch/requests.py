"""What has the launcher been asked to do from outside?

Signal handlers only record and wake; the launcher's main thread acts. SIGTERM drains all groups (exit 75). The first
SIGINT drains too, the second kills; both end with 130.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType


class Requests:
    """The told state. ``wake`` may be called from any thread and from signal handlers."""

    def __init__(self) -> None:
        self.terminated = False
        self.interrupts = 0
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def stopping(self) -> bool:
        return self.terminated or self.interrupts > 0

    def wake(self) -> None:
        """End a wait, or the next one."""
        self._queue.put(None)

    def wait(self, seconds: float) -> None:
        """Until something happens or the time is up."""
        with contextlib.suppress(queue.Empty):
            self._queue.get(timeout=seconds)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT while inside. Main thread only."""
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.terminated = True
        self.wake()
