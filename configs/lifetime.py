"""How does a child process end with the process that started it, however that one ends?

The kernel sends SIGKILL when the parent THREAD ends (PR_SET_PDEATHSIG; Linux only, as is everything that launches), so
parents start children from threads that live as long as they do. Called by the children themselves, first of all.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """SIGKILL this process when its parent ends; exit at once if ``parent`` (a pid) is already gone.

    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)
