"""A healer in a process of its own that is stopped at half: ``python -m tests.support.stopped_healer ROWS ADDRESS``."""

from __future__ import annotations

import os
import signal
import sys

from checkpointing.errors import TransferError
from tests.support.states import tensors
from tests.support.transfers import Healer


def main() -> None:
    """Heal, stop at half, and once woken say what came of it."""
    rows, address = sys.argv[1:]
    stopped = []

    def stop_at_half(done: int, total: int) -> None:
        if done * 2 >= total and not stopped:
            stopped.append(done)
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        Healer(tensors(1, int(rows))).fetch(address, progress=stop_at_half)
    except TransferError as error:
        print(f"void: {error}", flush=True)
    else:
        print("healed", flush=True)


if __name__ == "__main__":
    main()
