"""How do the data part's child processes end with the process they serve?

The kernel kills a child when its parent dies (PR_SET_PDEATHSIG). A child of a fork server has the server as its
parent, so it also watches the pipe that its real owner holds open. Neither waits for a poll. Called by the children
themselves, first of all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

from configs.lifetime import die_with_parent


def die_with_owner() -> None:
    """SIGKILL for this ``multiprocessing`` child when the process that called ``start`` is gone, or its fork server."""
    die_with_parent()
    owner = multiprocessing.parent_process()
    if owner is not None:
        threading.Thread(target=_end_after, args=(owner.sentinel,), name="owner-watch", daemon=True).start()


def outlive_signals() -> None:
    """Leave SIGTERM and SIGINT to the owner: they reach whole process groups, and a draining rank needs its data."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
