"""How does the launcher see that its lighthouse still works, and not only that its process is there?

The event loop writes a byte into an inherited pipe every second: a loop that hangs, and a process that is stopped, fall
silent. A pipe needs no port, no certificate and no thread on either side. Read by ops/launch/coordinator.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

BEAT_S = 1.0


async def beat(pipe: int) -> None:
    """Write until cancelled, or until nobody reads any more."""
    os.set_blocking(pipe, False)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):  # the reader is behind: what is in the pipe says enough
                os.write(pipe, b".")
            await asyncio.sleep(BEAT_S)
    except BrokenPipeError:
        return
    finally:
        os.close(pipe)
