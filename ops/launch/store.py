"""Is the token store there before the ranks start?

Building it takes seconds and many processes, so it is done once, in a process forked from the warm server, with its
progress passed on; the ranks then only open it. A store that is corrupt, or data that cannot be read, ends the launch
before any group has started.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from configs.words import Exit, ExitRequest
from ops.launch.policy import describe_code
from ops.launch.ranks import print_into, tie_to_server
from ops.launch.warm import Warm, wait_for

LOOK_S = 0.2
Prepare = Callable[[Any, Callable[[str], None]], None]


def prepare_store(config: Any, log: Callable[[str], None]) -> None:
    """Build or open the token store. Runs in a child of the warm server. Raises ExitRequest for what a user
    can mend."""
    from trainer.data.errors import DataError
    from trainer.data.prepare import prepare  # heavy: tokenizers

    try:
        prepare(config, log)
    except DataError as error:
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error


def prepare_first(
    *,
    warm: Warm,
    config: Any,
    log_file: Path,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    prepare: Prepare = prepare_store,
) -> None:
    """Run ``prepare`` in a child and wait for it, or kill it when ``stopping``. Raises ExitRequest with its code and
    reason."""
    receive, send = Pipe(duplex=False)
    child = warm.start(_enter, prepare, config, send, log_file)
    send.close()
    failure: tuple[int, str] | None = None
    with receive, contextlib.suppress(EOFError):
        while not stopping():
            if receive not in wait_for([child], LOOK_S, receive):
                continue
            kind, value = receive.recv()  # EOFError once the child has ended
            if kind == "log":
                say(str(value))
            else:
                failure = value
    if stopping():
        child.signal(signal.SIGKILL)
    wait_for([child], None)
    if stopping():
        return
    if failure is not None:
        raise ExitRequest(Exit(failure[0]), failure[1])
    if child.code() != 0:
        said = log_file.read_text(errors="replace").strip().splitlines()[-5:] if log_file.exists() else []
        ended = describe_code(child.code() or 0)
        raise ExitRequest(Exit.CHECK_FAILED, f"preparing the data: {ended}: {' | '.join(said)}")


def _enter(prepare: Prepare, config: Any, send: Connection, log_file: Path) -> None:
    tie_to_server()
    print_into(log_file)
    try:
        prepare(config, lambda text: send.send(("log", text)))
    except ExitRequest as error:
        send.send(("failed", (int(error.code), error.reason)))
    finally:
        send.close()
