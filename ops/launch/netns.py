"""Being in another network namespace: a group's own host on this machine, for scenarios with a bad network.

A thread enters a namespace, and what it starts or opens then is there: a forked child for good, a socket too. Needs
root. (``os.setns`` comes with a later Python.)
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000


def enter(name: str) -> None:
    """Move this thread into a namespace that ``ip netns`` knows. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(handle)


def inside(name: str, call: Callable[[], T]) -> T:
    """What ``call`` returns in a namespace; this thread stays where it is."""
    made: list[T] = []
    errors: list[OSError] = []

    def body() -> None:
        try:
            enter(name)
            made.append(call())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return made[0]
