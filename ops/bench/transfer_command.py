"""``phalanx bench transfer``: state from peer to peer on loopback, beside torchft's HTTPTransport and a bare socket.

Sources and receiver are processes of their own (``ops.bench.transfer_peer``) that hold the state; all ways of moving it
take turns, so that a busy moment meets each. The time is from the receiver's first call to its last byte. Ours takes
and verifies a digest of every chunk in that time; the others verify nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ops.bench.children import command, last_lines, workplace
from ops.bench.figures import machine, spread, spread_text
from ops.console import Console
from ops.counting import counted
from ops.result import Result, UsageError

MEGABYTES = "512,2000"
SEED = 7
HTTP_CHUNKS = (0, 8)
SOURCES = (1, 2)
LIMIT = 1e9
"""Of a source that cannot give more, as over a network of 10 Gbit/s; without it one source fills two cores."""


class TransferBenchError(Exception):
    """A peer ended, or what arrived was not what was sent."""


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to move the state."""

    how: str
    """A method of source and receiver."""
    sources: int = 1
    keyed: bool = False
    limit: float | None = None
    """Bytes per second that each source gives at most."""
    chunks: int = 0


WAYS: dict[str, Way] = {
    **{f"ours_{count}": Way("ours", count) for count in SOURCES},
    **{f"keyed_{count}": Way("ours", count, keyed=True) for count in SOURCES},
    **{f"limited_{count}": Way("ours", count, limit=LIMIT) for count in SOURCES},
    **{f"http_{chunks}": Way("http", chunks=chunks) for chunks in HTTP_CHUNKS},
    "raw": Way("raw"),
}


LEGEND = (
    "GB/s are 10^9 bytes a second, from the first call to the last byte. ours_N: ours from N sources, every chunk "
    f"verified; keyed_N: the same with a secret (blake3 for xxh3); limited_N: from N sources that give {LIMIT / 1e9:g} "
    "GB/s each at most; http_N: torchft's HTTPTransport in N chunks (0: whole); raw: one bare socket. The last two "
    "verify nothing"
)
"""What the names of ``WAYS`` stand for, before the first figures."""


@dataclasses.dataclass(kw_only=True)
class Taken:
    """What the repetitions of one way took."""

    gb_per_s: list[float] = dataclasses.field(default_factory=list)
    extra_bytes: int = 0
    """The most of any."""


class Peer:
    """A process that holds a state. ``call`` gives it an order and waits for what came of it."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command("ops.bench.transfer_peer", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C is for the benchmark
            )

    def ready(self) -> Any:
        """Its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TransferBenchError(f"a peer ended: {last_lines(self._log)}")
        return json.loads(line)

    def call(self, name: str, **options: Any) -> Any:
        """What ``name`` of it gave."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its missing answer tells
            self._process.stdin.write(json.dumps([name, options]) + "\n")
        return self.ready()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx bench transfer``."""
    parser.add_argument(
        "--megabytes",
        default=MEGABYTES,
        metavar="N,...",
        help="sizes of the state, in 10^6 bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, metavar="N", help="of every way and size (default: %(default)s)"
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Measure. Raises UsageError."""
    try:
        sizes = [int(word) * 10**6 for word in options.megabytes.split(",")]
    except ValueError:
        raise UsageError(f"--megabytes {options.megabytes}: expected numbers, joined by commas") from None
    if min(*sizes, options.repeats) < 1:
        raise UsageError("--megabytes and --repeats must be at least 1")
    console.say(LEGEND)
    before = machine()
    found: list[dict[str, Any]] = []
    with workplace() as folder:
        try:
            for size in sizes:
                found += figures(size, measure(folder, size, repeats=options.repeats, console=console))
        except TransferBenchError as error:
            return Result(code=1, text=f"not measured: {error}", data={"error": str(error)})
    words = f"phalanx bench transfer --megabytes {options.megabytes} --repeats {options.repeats} --json"
    data = {"sizes": found, "repeats": options.repeats, "machine": before, "command": words}
    return Result(text=text_of(data), data=data)


def measure(folder: Path, size: int, *, repeats: int, console: Console) -> dict[str, Taken]:
    """Every way, in turn, ``repeats`` times; once more before, for what only the first time costs."""
    taken = {name: Taken() for name in WAYS}
    with _peers(folder, size) as (sources, receiver):
        expected = sources[0].call("digest")
        for repeat in range(repeats + 1):
            for name, way in WAYS.items():
                attempt = repeat * len(WAYS) + list(WAYS).index(name)
                answer = _move(way, sources[: way.sources], receiver, attempt=attempt)
                if answer["digest"] != expected:
                    raise TransferBenchError(f"{name}: what arrived is not what was sent")
                if repeat:
                    taken[name].gb_per_s.append(size / answer["seconds"] / 1e9)
                    taken[name].extra_bytes = max(taken[name].extra_bytes, answer["extra_bytes"])
            console.say(f"{size // 10**6} MB: {_so_far(taken)} GB/s" if repeat else f"{size // 10**6} MB: warm")
    return taken


def figures(size: int, taken: dict[str, Taken]) -> list[dict[str, Any]]:
    """The figures of one size: an entry for each number of sources."""
    http = {chunks: spread(taken[f"http_{chunks}"].gb_per_s) for chunks in HTTP_CHUNKS}
    best = max(HTTP_CHUNKS, key=lambda chunks: _median(http[chunks]))
    raw = spread(taken["raw"].gb_per_s)
    alone = spread(taken["ours_1"].gb_per_s)
    entries = []
    for count in SOURCES:
        ours = taken[f"ours_{count}"]
        found = spread(ours.gb_per_s)
        entries.append(
            {
                "bytes": size,
                "sources": count,
                "gb_per_s": found,
                "keyed_gb_per_s": spread(taken[f"keyed_{count}"].gb_per_s),
                "http_transport_gb_per_s": http[best],
                "http_transport_chunks": best,
                "raw_socket_gb_per_s": raw,
                "raw_ratio": _over(found, raw),
                "http_transport_ratio": _over(found, http[best]),
                "one_source_ratio": _over(found, alone),
                "limited_gb_per_s": spread(taken[f"limited_{count}"].gb_per_s),
                "limit_gb_per_s": LIMIT / 1e9,
                "receiver_extra_bytes": ours.extra_bytes,
                "receiver_extra_share": ours.extra_bytes / size,
                "http_transport_extra_bytes": taken[f"http_{best}"].extra_bytes,
            }
        )
    return entries


def text_of(data: dict[str, Any]) -> str:
    """The figures for people."""
    lines = []
    for entry in data["sizes"]:
        lines += [
            f"{entry['bytes'] / 1e6:.0f} MB from {counted(entry['sources'], 'source')}: "
            f"{spread_text(entry['gb_per_s'])} GB/s, {entry['receiver_extra_share']:.1%} more memory in the receiver",
            f"  with a secret {spread_text(entry['keyed_gb_per_s'])} GB/s; from sources that give at most "
            f"{entry['limit_gb_per_s']:g} GB/s each {spread_text(entry['limited_gb_per_s'])} GB/s",
            f"  HTTPTransport {spread_text(entry['http_transport_gb_per_s'])} GB/s, "
            f"ours is {entry['http_transport_ratio']:.2f} times as fast",
            f"  raw socket    {spread_text(entry['raw_socket_gb_per_s'])} GB/s, "
            f"ours is {entry['raw_ratio']:.2f} times as fast",
        ]
    return "\n".join(lines)


@contextlib.contextmanager
def _peers(folder: Path, size: int) -> Iterator[tuple[list[Peer], Peer]]:
    """Sources of one state, and a receiver whose tensors are as large."""
    with contextlib.ExitStack() as ends:
        peers = []
        for number, seed in enumerate([*[str(SEED)] * max(SOURCES), None]):
            given = [str(size // 4 * 4)] if seed is None else [str(size // 4 * 4), seed]
            peers.append(Peer(folder / f"{size}-{number}.log", *given))
            ends.callback(peers[-1].end)
        for peer in peers:
            peer.ready()
        *sources, receiver = peers
        yield sources, receiver


def _move(way: Way, sources: Sequence[Peer], receiver: Peer, *, attempt: int) -> dict[str, Any]:
    if way.how == "ours":
        addresses = [source.call("ours", attempt=attempt, keyed=way.keyed, limit=way.limit) for source in sources]
        answer = receiver.call("ours", addresses=addresses, attempt=attempt, keyed=way.keyed)
    elif way.how == "http":
        answer = receiver.call("http", address=sources[0].call("http", chunks=way.chunks), chunks=way.chunks)
    else:
        answer = receiver.call("raw", address=sources[0].call("raw"))
    for source in sources:
        source.call("close")
    return dict(answer)


def _median(found: dict[str, Any] | None) -> float:
    return 0.0 if found is None else float(found["median"])


def _over(ours: dict[str, Any] | None, other: dict[str, Any] | None) -> float | None:
    return _median(ours) / _median(other) if _median(other) else None


def _so_far(taken: dict[str, Taken]) -> str:
    return ", ".join(f"{name} {one.gb_per_s[-1]:.2f}" for name, one in taken.items())
