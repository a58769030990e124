"""The coordinator process: ``python -m lighthouse``. Prints its address and serves until it is told to stop.

Exit codes: 0 stopped, 2 an address or file cannot be used. SIGTERM and SIGINT stop it; groups keep what they have and
wait for the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.lifetime import die_with_parent
from configs.run_folder import write_atomically
from configs.secret import read_secret
from configs.tls import add_tls_options, tls_from
from configs.words import Exit, ExitRequest
from lighthouse.beat import beat
from lighthouse.server import Lighthouse, Settings

_STDERR = 2
"""The descriptor: ``sys.stderr`` may be something without one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a lighthouse; returns its exit code."""
    options = _parser().parse_args(arguments)
    faulthandler.enable(_STDERR)  # SIGABRT leaves the stacks of all threads
    if options.die_with_parent:
        die_with_parent()
    try:
        settings = Settings(
            tls=tls_from(options),
            bind=options.bind,
            http=options.http or None,
            min_groups=options.min_groups,
            state=options.state,
            events=options.events,
            secret=read_secret(),
        )
        asyncio.run(_serve(settings, address_file=options.address_file, pipe=options.beat))
    except ExitRequest as request:
        print(f"lighthouse: {request.reason}", file=sys.stderr)
        return int(request.code)
    except OSError as error:  # what it decides must be on disk before it is told: it cannot go on
        print(f"lighthouse: cannot go on: {error}", file=sys.stderr)
        return int(Exit.CHECK_FAILED)
    return int(Exit.DONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lighthouse",
        description="Coordinate a run: who is in the quorum, step by step.",
        epilog="example: python -m lighthouse --bind 127.0.0.1:29510 --state run/events/lighthouse.state",
    )
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="HOST:PORT", help="gateway (default: %(default)s)")
    parser.add_argument(
        "--http", default="127.0.0.1:0", metavar="HOST:PORT", help="live page, /metrics, /status.json; '' for none"
    )
    parser.add_argument("--min-groups", type=int, default=1, metavar="N", help="fewest groups of a quorum")
    parser.add_argument("--state", type=Path, metavar="FILE", help="what it must remember when it dies")
    parser.add_argument("--events", type=Path, metavar="FILE", help="event log, JSON lines")
    parser.add_argument("--address-file", type=Path, metavar="FILE", help="gets the gateway's and the pages' URL")
    add_tls_options(parser)
    parser.add_argument("--beat", type=int, metavar="FD", help="inherited pipe that gets a byte a second")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started it ends")
    return parser


async def _serve(settings: Settings, *, address_file: Path | None, pipe: int | None) -> None:
    lighthouse = Lighthouse(settings)
    beating = None if pipe is None else asyncio.create_task(beat(pipe))
    try:
        await lighthouse.start()
        if address_file is not None:
            write_atomically(address_file, f"{lighthouse.url}\n{lighthouse.http_url or ''}\n")
        print(lighthouse.url, flush=True)
        if lighthouse.http_url is not None:
            print(f"live page: {lighthouse.http_url}/", flush=True)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await lighthouse.serve()
    finally:
        await lighthouse.stop()
        if beating is not None:
            beating.cancel()


if __name__ == "__main__":
    sys.exit(main())
