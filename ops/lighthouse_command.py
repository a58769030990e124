"""``phalanx lighthouse``: the coordinator alone, as ``python -m lighthouse``."""

from __future__ import annotations

import argparse

from configs.tls import add_tls_options
from ops.console import Console
from ops.result import Result

OPTIONS = (
    "bind",
    "http",
    "min_groups",
    "state",
    "events",
    "address_file",
    "tls_certificate",
    "tls_key",
    "tls_ca",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m lighthouse``."""
    parser.add_argument("--bind", metavar="HOST:PORT", help="address of the gateway (default: a free loopback port)")
    parser.add_argument("--http", metavar="HOST:PORT", help="address of the page (default: a free loopback port)")
    parser.add_argument("--min-groups", metavar="N", help="fewest groups of a quorum (default: 1)")
    parser.add_argument("--state", metavar="FILE", help="what it must remember when it dies")
    parser.add_argument("--events", metavar="FILE", help="its event log")
    parser.add_argument("--address-file", metavar="FILE", help="gets the addresses, one a line")
    add_tls_options(parser)


def run(options: argparse.Namespace, console: Console) -> Result:
    """Serve until told to stop."""
    from lighthouse.__main__ import main

    del console
    words: list[str] = []
    for name in OPTIONS:
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--tls-any-client"] if options.tls_any_client else []
    return Result(code=main(words))
