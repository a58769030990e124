"""How does a healer take its state from its peers? In stripes, over several connections to all sources at once.

Every connection takes the next missing chunks from one common list and receives them straight into the tensors, so a
fast source gives more than a slow one. From the first byte the healer's state is void: ``on_first_byte`` is called
before it. A chunk counts once its digest is right; when a source dies, lies or stalls, its chunks go back to the list
and nothing starts over. Sources must agree on every digest. ``stop`` is asked many times a second, so a healer leaves a
lost attempt at once. May run on a thread beside training; the destinations must not be touched until it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from checkpointing.errors import TransferError, TransferStopped
from checkpointing.line import Broken, Line, Refused
from checkpointing.memory import Buffer, ShardBytes
from checkpointing.server import nothing
from checkpointing.state import Clocks, describe
from checkpointing.wire import HEADER, Chunk, Manifest, Request, chunk_digest, digest_kind, pack_header
from configs.tls import Tls
from configs.words import Lineage

CONNECTIONS = 2
"""At least so many, whatever the number of sources: one connection does not fill a loopback or a fast network."""
_MOST_CONNECTIONS = 8
_BATCH = 4
"""Chunks asked for at once; the next batch is asked for before the last has come."""
_IDLE_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """A state that arrived whole, every digest verified."""

    clocks: Clocks
    bytes: int
    seconds: float
    sources: tuple[str, ...]
    """Addresses that sent chunks which count, in the order in which they were given."""
    differing: Mapping[str, tuple[str, ...]]
    """Addresses that hold another state of the same lineage, each with the tensors that differ: it was not used."""


def fetch(
    sources: Sequence[str],
    *,
    attempt: int,
    quorum_id: int,
    lineage: Lineage,
    tensors: Mapping[str, torch.Tensor],
    on_first_byte: Callable[[], None],
    stop: Callable[[], bool],
    secret: bytes | None = None,
    tls: Tls | None = None,
    stall_s: float = 10.0,
    connections: int = CONNECTIONS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    failpoint: Callable[..., None] = nothing,
) -> Received:
    """Receive the state ``lineage`` into ``tensors``, in place.

    ``sources`` are ``host:port`` of state servers; ``quorum_id`` is that of the attempt's grant; ``stall_s`` is how
    long a source may be silent before it is given up (a source whose window is not open yet is not silent: it says so).
    ``progress`` is called with (bytes that count, bytes of all) after each chunk, from several threads. Raises
    TransferStopped when ``stop()`` turned true, TransferError (naming every source and what was wrong with it) when no
    source is left; the destinations are void if ``on_first_byte`` was called.
    """
    started = time.monotonic()
    healing = _Healing(
        Request(attempt, quorum_id, lineage),
        tensors,
        kind=digest_kind(secret),
        on_first_byte=on_first_byte,
        stop=stop,
        progress=progress,
        failpoint=failpoint,
    )
    routes = _Routes(sources, connections)
    context = None if tls is None else tls.client()
    connect = _Connector(secret=secret, stop=healing.over, stall_s=stall_s, tls=context)
    lanes = [
        threading.Thread(target=_lane, args=(healing, routes, connect), name=f"heal-{number}", daemon=True)
        for number in range(routes.lanes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    clocks = healing.finish(stopped=stop(), reasons=routes.reasons)
    seconds = time.monotonic() - started
    given = tuple(source for source in dict.fromkeys(sources) if source in healing.gave)
    return Received(clocks=clocks, bytes=healing.bytes, seconds=seconds, sources=given, differing=healing.differing)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Connector:
    secret: bytes | None
    stop: Callable[[], bool]
    stall_s: float
    tls: ssl.SSLContext | None

    def __call__(self, source: str) -> Line:
        return Line(source, secret=self.secret, stop=self.stop, stall_s=self.stall_s, tls=self.tls)


class _Routes:
    """Which source is next. Each is given out until there are enough connections, and once more after it broke."""

    def __init__(self, sources: Sequence[str], connections: int) -> None:
        distinct = list(dict.fromkeys(sources))
        self.lanes = min(max(connections, len(distinct)), _MOST_CONNECTIONS) if distinct else 0
        rounds = -(-self.lanes // len(distinct)) if distinct else 0
        self._left = deque(distinct * rounds)
        self._again = set(distinct)
        self._lock = threading.Lock()
        self.reasons: list[str] = []

    def take(self) -> str | None:
        with self._lock:
            return self._left.popleft() if self._left else None

    def failed(self, source: str, error: Exception) -> None:
        with self._lock:
            self.reasons.append(f"{source}: {error}")
            if isinstance(error, Broken) and source in self._again:
                self._again.discard(source)
                self._left.append(source)


def _lane(healing: _Healing, routes: _Routes, connect: _Connector) -> None:
    """One connection after the other, until all is here or no source is left. The body of a thread."""
    try:
        while not healing.over() and (source := routes.take()) is not None:
            try:
                with contextlib.closing(connect(source)) as line:
                    healing.take_from(line)
            except (Broken, Refused, OSError, ValueError) as error:
                routes.failed(source, error)
    except TransferStopped:
        pass
    except BaseException as error:  # noqa: BLE001 - a thread's edge: what a callback raised is fetch's to raise
        healing.fail(error)


class _Healing:
    """What has arrived so far, whoever sent it. Shared by the connections' threads."""

    def __init__(
        self,
        request: Request,
        tensors: Mapping[str, torch.Tensor],
        *,
        kind: str,
        on_first_byte: Callable[[], None],
        stop: Callable[[], bool],
        progress: Callable[[int, int], None],
        failpoint: Callable[..., None],
    ) -> None:
        self._request = request
        self._tensors = tensors
        self._kind = kind
        self._shards = {name: ShardBytes(tensor) for name, tensor in tensors.items()}
        self._on_first_byte = on_first_byte
        self._stop = stop
        self._progress = progress
        self._failpoint = failpoint
        self._changed = threading.Condition()
        self._manifest: Manifest | None = None
        self._pending: deque[Chunk] = deque()
        self._missing = 0
        """Chunks that do not count yet: pending, or asked of somebody."""
        self._count = 0
        """Chunks of the whole state."""
        self._total = 0
        self._void = False
        self._error: BaseException | None = None
        self.bytes = 0
        self.gave: set[str] = set()
        self.differing: dict[str, tuple[str, ...]] = {}

    def over(self) -> bool:
        """Nothing more is wanted: all is here, something failed for good, or the attempt is over."""
        return self._complete or self._error is not None or self._stop()

    @property
    def _complete(self) -> bool:
        return self._manifest is not None and not self._missing

    def fail(self, error: BaseException) -> None:
        """The whole transfer fails with ``error``."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def finish(self, *, stopped: bool, reasons: Sequence[str]) -> Clocks:
        """All connections have ended: complete the tensors and return the clocks that go with them, or raise."""
        if self._error is not None:
            raise self._error
        if self._manifest is None or self._missing:
            if stopped:
                raise TransferStopped("the attempt is over")
            raise TransferError("; ".join(reasons) or "no source has this state")
        for shard in self._shards.values():
            shard.finish()
        return self._manifest.clocks

    def take_from(self, line: Line) -> None:
        """Take chunks from one source until none is missing. Raises Refused, Broken, OSError or ValueError; chunks that
        were asked for and did not come are missing again then."""
        self._agree(line.request(self._request), line.source)
        buffer = Buffer()
        asked: deque[Chunk] = deque()
        try:
            while True:
                self._ask(line, asked)
                if not asked and not self._wait_for_more():
                    return
                for _ in range(min(_BATCH, len(asked))):
                    self._receive(asked[0], line, buffer)
                    asked.popleft()
        finally:
            with self._changed:
                self._pending.extendleft(reversed(asked))
                self._changed.notify_all()

    def _ask(self, line: Line, asked: deque[Chunk]) -> None:
        """Keep up to two batches on the way."""
        with self._changed:
            count = min(2 * _BATCH - len(asked), len(self._pending))
            more = [self._pending.popleft() for _ in range(count)]
        asked.extend(more)
        if more:
            line.send({"chunks": [chunk.index for chunk in more]})

    def _wait_for_more(self) -> bool:
        """Others may give chunks back. False when all is here or over."""
        with self._changed:
            while not self._pending and not self.over():
                self._changed.wait(_IDLE_S)
            return bool(self._pending) and not self.over()

    def _agree(self, manifest: Manifest, source: str) -> None:
        """Accept a source's manifest: the state asked for, our shards, and the bytes that the other sources have."""
        if manifest.request != self._request or manifest.clocks.lineage != self._request.lineage:
            raise ValueError(f"the source offers {manifest.clocks.lineage}, wanted is {self._request.lineage}")
        if manifest.digest_kind != self._kind:
            raise ValueError(f"the source's digests are {manifest.digest_kind}, wanted are {self._kind}")
        with self._changed:
            if self._manifest is None:
                if problems := list(self._misfits(manifest)):
                    raise ValueError("the source's state does not fit: " + "; ".join(problems))
                chunks = list(manifest.chunks())
                self._pending.extend(chunks)
                self._missing = self._count = len(chunks)
                self._total = sum(chunk.stop - chunk.start for chunk in chunks)
                self._manifest = manifest
                self._changed.notify_all()
            elif manifest != self._manifest:
                pairs = zip(manifest.entries, self._manifest.entries, strict=False)
                self.differing[source] = tuple(theirs.name for theirs, ours in pairs if theirs != ours)
                raise ValueError(f"{source} holds another state of the same lineage than the sources before it")

    def _misfits(self, manifest: Manifest) -> Iterator[str]:
        offered = {entry.name: entry for entry in manifest.entries}
        for name in sorted(set(offered) ^ set(self._tensors)):
            yield f"{name} is {'not ours' if name in offered else 'missing'}"
        for name in offered.keys() & self._tensors.keys():
            shard = describe(self._tensors[name])
            if offered[name].shard != shard or offered[name].nbytes != self._shards[name].nbytes:
                yield f"{name} is {offered[name].shard}, ours is {shard}"

    def _receive(self, chunk: Chunk, line: Line, buffer: Buffer) -> None:
        header = bytearray(HEADER.size)
        line.fill(memoryview(header))
        if bytes(header) != pack_header(self._request, chunk):
            raise Broken(f"the source sent another chunk than {chunk.name} [{chunk.start}, {chunk.stop})")
        with self._changed:
            if not self._void:
                self._on_first_byte()
                self._void = True
        shard = self._shards[chunk.name]
        landing = shard.landing(chunk.start, chunk.stop, buffer)
        line.fill(landing)
        if chunk_digest(landing, kind=self._kind) != chunk.digest:
            raise Broken(f"{chunk.name} [{chunk.start}, {chunk.stop}) arrived with a wrong digest")
        shard.landed(chunk.start, chunk.stop, buffer)
        with self._changed:
            self._missing -= 1
            self.bytes += len(landing)
            self.gave.add(line.source)
            arrived, done = self._count - self._missing, self.bytes
            if not self._missing:
                self._changed.notify_all()
        self._failpoint("heal_recv", step=self._request.lineage.step, done=arrived, total=self._count)
        self._progress(done, self._total)
