"""How does every process of a run die with the process that started it?

``die_with_parent`` asks the kernel for a SIGKILL when the parent THREAD ends, so parents start children from threads
that live as long as they do. As a program, ``python -m ops.launch.leash PARENT_PID MODULE ARGS...`` ties itself first
and then becomes ``python -m MODULE ARGS...``: nothing runs between fork and exec of a parent that has threads.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(*, parent: int | None = None) -> None:
    """SIGKILL this process when its parent thread ends; exit at once if ``parent`` (a pid) is already gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before the kernel was asked.
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Tie this process to its parent, then run a module in it."""
    parent, module, *arguments = sys.argv[1:]
    die_with_parent(parent=int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
