"""The edge of a rank's process: how it begins, hears and ends.

It hears SIGTERM as a request to drain, and ends through ``os._exit`` after flushing, because an
abandoned collective would hold an ordinary exit for its whole timeout. Whoever finds out that this incarnation is over
(a watching thread, the main thread) calls ``Leaver.leave``; the first one wins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from configs.words import Exit


def redirect_output(path: Path) -> None:
    """From now on stdout and stderr of this process, of C code too, go to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)


def on_terminate(drain: Callable[[], None]) -> None:
    """SIGTERM asks for a drain; SIGINT is the launcher's business (a terminal sends it to everybody)."""
    signal.signal(signal.SIGTERM, lambda *_: drain())
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def leave_on_terminate(leaver: Leaver) -> None:
    """Until this rank belongs to a group there is nothing to drain: SIGTERM ends it at once, as drained."""
    ended = (Exit.DRAINED, "asked to stop before it had joined")
    # On a thread, because the main thread may be leaving already, with the lock that ``leave`` takes.
    on_terminate(lambda: threading.Thread(target=leaver.leave, args=ended, name="leaver").start())


class Leaver:
    """Ends the process, once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_words: list[Callable[[Exit, str], None]] = []

    def before(self, word: Callable[[Exit, str], None]) -> None:
        """Call this with (code, reason) before the process ends; the latest first."""
        self._last_words.append(word)

    def leave(self, code: Exit, reason: str) -> None:
        """End the process. Does not return."""
        with self._lock:  # a second caller waits here until the process is gone
            if code not in (Exit.DONE, Exit.DRAINED):
                print(f"exit {int(code)}: {reason}", file=sys.stderr)
            for word in reversed(self._last_words):
                try:
                    word(code, reason)
                except Exception as error:  # noqa: BLE001  the process's last edge: it must end whatever fails
                    print(f"while leaving: {error!r}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
