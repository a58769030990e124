"""How does a healer take its state from its peers? Chunk by chunk into its own tensors, from one source after another.

From the first byte the healer's state is void, so ``on_first_byte`` is called before it. A chunk counts once its digest
is right; when a source dies, lies or stalls, the next one is asked for the chunks that are still missing, so nothing
starts over. Sources must agree on every digest. ``stop`` is asked many times a second, so a healer leaves a lost
attempt at once. May run on a thread beside training; the destinations must not be touched until it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from checkpointing.errors import TransferError, TransferStopped
from checkpointing.memory import Buffer, ShardBytes
from checkpointing.server import nothing
from checkpointing.state import Clocks, describe
from checkpointing.wire import (
    HEADER,
    MANIFEST_FRAME,
    NONCE_BYTES,
    SMALL_FRAME,
    Chunk,
    Manifest,
    Request,
    check_signature,
    chunk_digest,
    pack_header,
    pack_json,
    read_json,
    sign,
)
from configs.words import Lineage

_POLL_S = 0.05
_WANT = 256
"""Chunks asked for at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """A state that arrived whole, every digest verified."""

    clocks: Clocks
    bytes: int
    seconds: float
    sources: tuple[str, ...]
    """Addresses that sent chunks which count."""


class _Refused(Exception):
    """The source answered that it has nothing for us."""


class _Broken(Exception):
    """The source sent something wrong, or ended early: worth one more try."""


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
    stall_s: float = 10.0,
    failpoint: Callable[..., None] = nothing,
) -> Received:
    """Receive the state ``lineage`` into ``tensors``, in place.

    ``sources`` are ``host:port`` of state servers, tried in this order; ``quorum_id`` is that of the attempt's grant;
    ``stall_s`` is how long a source may be silent before the next is asked (a source whose window is not open yet is
    not silent: it says so). Raises TransferStopped when ``stop()`` turned true, TransferError (naming every source and
    what was wrong with it) when no source is left; the destinations are void if ``on_first_byte`` was called.
    """
    started = time.monotonic()
    request = Request(attempt, quorum_id, lineage)
    healing = _Healing(request, tensors, on_first_byte, failpoint)
    left = deque(sources)
    tried: set[str] = set()
    reasons: list[str] = []
    while left:
        source = left.popleft()
        try:
            with contextlib.closing(_Line(source, secret=secret, stop=stop, stall_s=stall_s)) as line:
                healing.take(line)
            return Received(
                clocks=healing.finish(),
                bytes=healing.bytes,
                seconds=time.monotonic() - started,
                sources=tuple(healing.sources),
            )
        except _Broken as error:
            reasons.append(f"{source}: {error}")
            if source not in tried:
                left.append(source)
            tried.add(source)
        except (_Refused, OSError, ValueError) as error:
            reasons.append(f"{source}: {error}")
    raise TransferError("; ".join(reasons) or "no source has this state")


class _Healing:
    """What has arrived so far, whoever sent it."""

    def __init__(
        self,
        request: Request,
        tensors: Mapping[str, torch.Tensor],
        on_first_byte: Callable[[], None],
        failpoint: Callable[..., None],
    ) -> None:
        self._request = request
        self._tensors = tensors
        self._shards = {name: ShardBytes(tensor) for name, tensor in tensors.items()}
        self._on_first_byte = on_first_byte
        self._failpoint = failpoint
        self._manifest: Manifest | None = None
        self._missing: dict[int, Chunk] = {}
        self._buffer = Buffer()
        self._void = False
        self._middle = 0
        self.bytes = 0
        self.sources: list[str] = []

    def take(self, line: _Line) -> None:
        """Take the missing chunks from one source. Raises _Refused, _Broken, OSError or ValueError."""
        self._agree(line.request(self._request), line.source)
        while self._missing:
            wanted = list(self._missing.values())[:_WANT]
            line.send({"chunks": [chunk.index for chunk in wanted]})
            for chunk in wanted:
                self._receive(chunk, line)

    def finish(self) -> Clocks:
        """All chunks are here: complete the tensors and return the clocks that go with them."""
        if self._manifest is None or self._missing:
            raise AssertionError("the transfer is not complete")
        for shard in self._shards.values():
            shard.finish()
        return self._manifest.clocks

    def _agree(self, manifest: Manifest, source: str) -> None:
        """Accept a source's manifest: the state asked for, our shards, and the bytes that the other sources have."""
        if manifest.request != self._request or manifest.clocks.lineage != self._request.lineage:
            raise ValueError(f"the source offers {manifest.clocks.lineage}, wanted is {self._request.lineage}")
        if self._manifest is None:
            if problems := list(self._misfits(manifest)):
                raise ValueError("the source's state does not fit: " + "; ".join(problems))
            self._manifest = manifest
            self._missing = {chunk.index: chunk for chunk in manifest.chunks()}
            self._middle = len(self._missing) // 2
        elif manifest != self._manifest:
            raise ValueError(f"{source} holds another state of the same lineage than the sources before it")

    def _misfits(self, manifest: Manifest) -> Iterator[str]:
        offered = {entry.name: entry for entry in manifest.entries}
        for name in sorted(set(offered) ^ set(self._tensors)):
            yield f"{name} is {'not ours' if name in offered else 'missing'}"
        for name in offered.keys() & self._tensors.keys():
            shard = describe(self._tensors[name])
            if offered[name].shard != shard or offered[name].nbytes != self._shards[name].nbytes:
                yield f"{name} is {offered[name].shard}, ours is {shard}"

    def _receive(self, chunk: Chunk, line: _Line) -> None:
        header = bytearray(HEADER.size)
        line.fill(memoryview(header))
        if bytes(header) != pack_header(self._request, chunk):
            raise _Broken(f"the source sent another chunk than {chunk.name} [{chunk.start}, {chunk.stop})")
        if not self._void:
            self._on_first_byte()
            self._void = True
        if chunk.index == self._middle:
            self._failpoint("heal_recv", step=self._request.lineage.step, chunk=chunk.index)
        shard = self._shards[chunk.name]
        landing = shard.landing(chunk.start, chunk.stop, self._buffer)
        line.fill(landing)
        if chunk_digest(landing) != chunk.digest:
            raise _Broken(f"{chunk.name} [{chunk.start}, {chunk.stop}) arrived with a wrong digest")
        shard.landed(chunk.start, chunk.stop, self._buffer)
        del self._missing[chunk.index]
        self.bytes += len(landing)
        if line.source not in self.sources:
            self.sources.append(line.source)


class _Line:
    """A connection to one source whose every wait ends when the attempt does, or when the source is silent too long."""

    def __init__(self, source: str, *, secret: bytes | None, stop: Callable[[], bool], stall_s: float) -> None:
        self.source = source
        self._secret = secret
        self._stop = stop
        self._stall_s = stall_s
        self._check()
        host, _, port = source.rpartition(":")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._connect((host, int(port)))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(_POLL_S)

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def request(self, request: Request) -> Manifest:
        """Ask for a state and wait until its window is open."""
        greeting = read_json(self._read, SMALL_FRAME)
        nonce = secrets.token_hex(NONCE_BYTES)
        body = {**request.to_json(), "nonce": nonce}
        self.send(sign(body, secret=self._secret, nonce=str(greeting.get("nonce"))))
        while True:
            answer = read_json(self._read, MANIFEST_FRAME)
            if answer.get("status") == "wait":
                continue
            if answer.get("status") != "open":
                raise _Refused(str(answer.get("reason", "refused")))
            check_signature(answer, secret=self._secret, nonce=nonce)
            return Manifest.from_json(answer["manifest"])

    def send(self, body: Mapping[str, Any]) -> None:
        """Send one control frame."""
        self._socket.settimeout(self._stall_s)
        self._socket.sendall(pack_json(body))
        self._socket.settimeout(_POLL_S)

    def fill(self, view: memoryview) -> None:
        """Receive exactly as many bytes as ``view`` holds."""
        heard = time.monotonic()
        while len(view):
            self._check()
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                if time.monotonic() - heard > self._stall_s:
                    raise OSError(f"silent for {self._stall_s} s") from None
                continue
            if not count:
                raise _Broken("the source ended the transfer")
            view = view[count:]
            heard = time.monotonic()

    def _connect(self, address: tuple[str, int]) -> None:
        self._socket.setblocking(False)
        code = self._socket.connect_ex(address)
        deadline = time.monotonic() + self._stall_s
        while code == errno.EINPROGRESS:
            self._check()
            if time.monotonic() > deadline:
                raise OSError(f"no connection within {self._stall_s} s")
            if select.select([], [self._socket], [], _POLL_S)[1]:
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def _check(self) -> None:
        if self._stop():
            raise TransferStopped(f"the attempt is over; {self.source} is left")
