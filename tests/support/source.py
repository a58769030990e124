"""A source of peer transfer in a process of its own, to be killed: ``python -m tests.support.source ROWS RATE``."""

from __future__ import annotations

import sys
import threading

from checkpointing.transfer import StateServer
from tests.support.states import clocks, tensors
from tests.support.transfers import CHUNK, WANTED


def main() -> None:
    """Serve the state of seed 1 until killed; prints the address. RATE in bytes per second."""
    rows, rate = (int(word) for word in sys.argv[1:])
    server = StateServer(chunk_bytes=CHUNK, rate_limit=rate)
    server.open(**WANTED, tensors=tensors(1, rows), clocks=clocks(12))
    print(server.address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
