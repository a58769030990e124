"""One side of ``phalanx bench transfer``: ``python -m ops.bench.transfer_peer BYTES [SEED]``, driven over its pipes.

A source holds a state and offers it through a state server, torchft's HTTPTransport or a bare socket; a receiver takes
it, each in a process of its own. Orders are JSON lines on stdin, answers JSON lines on stdout; the first says that the
state is there, every byte of it touched. Times are the receiver's, from its first call to its last byte; outside of
them the benchmark compares digests of what arrived.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import xxhash

from checkpointing.memory import bytes_of
from checkpointing.state import Clocks
from checkpointing.transfer import StateServer, fetch
from configs.words import Lineage

TENSOR_BYTES = 16 << 20
"""Of a large tensor, about a matrix of a model of some billion parameters; each comes with a small one."""
SMALL_BYTES = 16 << 10
LINEAGE = Lineage(1, 1)
QUORUM_ID = 2
STEP = 1
WAIT_S = 120.0

State = dict[str, torch.Tensor]


def state_of(size: int, seed: int | None) -> State:
    """Tensors of ``size`` bytes together (a multiple of 4), filled from ``seed``, or with ones."""
    tensors: State = {}
    left = size
    for nbytes in _sizes(size):
        name = f"model.{len(tensors):05}"
        tensors[name] = torch.ones(nbytes // 4)
        if seed is not None:
            words = tensors[name].view(torch.int32)
            torch.arange(left // 4 + seed, left // 4 + seed + len(words), dtype=torch.int32, out=words)
            words.mul_(-1640531535)  # scrambles: neighbours differ in most bits
        left -= nbytes
    return tensors


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of every byte, in order."""
    hasher = xxhash.xxh3_128()
    for tensor in tensors.values():
        hasher.update(_view(tensor))
    return hasher.hexdigest()


class Source:
    """Offers one state, one way at a time."""

    def __init__(self, tensors: State) -> None:
        self._tensors = tensors
        self._servers: dict[tuple[bool, float | None], StateServer] = {}
        self._transports: dict[int, Any] = {}

    def ours(self, *, attempt: int, keyed: bool, limit: float | None) -> str:
        """Open a new serving window: its digests are taken when the receiver asks, within the time that counts.
        ``limit`` is in bytes per second."""
        if (keyed, limit) not in self._servers:
            self._servers[keyed, limit] = StateServer(secret=_secret(keyed), rate_limit=limit)
        server = self._servers[keyed, limit]
        clocks = Clocks(step=STEP, quorum_id=1, cursor=0, tokens=0, seed=0, config_digest="")
        server.open(attempt=attempt, quorum_id=QUORUM_ID, lineage=LINEAGE, tensors=self._tensors, clocks=clocks)
        return server.address

    def http(self, *, chunks: int) -> str:
        """Let torchft's transport serve; it gives out the host's name, loopback is meant."""
        if chunks not in self._transports:
            self._transports[chunks] = _http_transport(chunks)
        transport = self._transports[chunks]
        transport.send_checkpoint([0], STEP, self._tensors, timedelta(seconds=WAIT_S))
        return f"http://localhost:{transport.metadata().rsplit(':', 1)[1]}"

    def raw(self) -> str:
        """Send every byte to the first who connects."""
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._pour, args=(server,), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    def close(self) -> None:
        """Serve no more, until something is offered again."""
        for server in self._servers.values():
            server.close()
        for transport in self._transports.values():
            transport.disallow_checkpoint()

    def digest(self) -> str:
        """Of the state."""
        return digest_of(self._tensors)

    def _pour(self, server: socket.socket) -> None:
        with server, server.accept()[0] as connection:
            for tensor in self._tensors.values():
                connection.sendall(_view(tensor))


class Receiver:
    """Takes a state, into its own tensors where the way allows it."""

    def __init__(self, tensors: State) -> None:
        self._tensors = tensors

    def ours(self, *, addresses: list[str], attempt: int, keyed: bool) -> dict[str, Any]:
        """Every chunk's digest is verified within the time that counts."""

        def take() -> State:
            fetch(
                addresses,
                attempt=attempt,
                quorum_id=QUORUM_ID,
                lineage=LINEAGE,
                tensors=self._tensors,
                on_first_byte=lambda: None,
                stop=lambda: False,
                secret=_secret(keyed),
                stall_s=WAIT_S,
            )
            return self._tensors

        return self._measured(take)

    def http(self, *, address: str, chunks: int) -> dict[str, Any]:
        """As torchft's Manager does: into memory that the transport allocates. Nothing is verified."""
        transport = _http_transport(chunks)
        try:
            return self._measured(lambda: transport.recv_checkpoint(0, address, STEP, timedelta(seconds=WAIT_S)))
        finally:
            transport.shutdown(wait=False)

    def raw(self, *, address: str) -> dict[str, Any]:
        """One connection, straight into the tensors. Nothing is verified."""
        host, port = address.split(":")

        def take() -> State:
            with socket.create_connection((host, int(port))) as connection:
                for tensor in self._tensors.values():
                    _fill(connection, _view(tensor))
            return self._tensors

        return self._measured(take)

    def _measured(self, take: Callable[[], State]) -> dict[str, Any]:
        for tensor in self._tensors.values():
            tensor.fill_(1)  # what is left of the last transfer must not pass for this one
        held = _forget_peak()
        began = time.perf_counter()
        taken = take()
        seconds = time.perf_counter() - began
        extra = max(0, _memory("VmHWM") - held)
        return {"seconds": seconds, "extra_bytes": extra, "digest": digest_of(taken)}


def _sizes(size: int) -> list[int]:
    sizes: list[int] = []
    while size > 0:
        sizes.append(min(size, SMALL_BYTES if len(sizes) % 2 else TENSOR_BYTES))
        size -= sizes[-1]
    return sizes


def _view(tensor: torch.Tensor) -> memoryview:
    return bytes_of(tensor.view(torch.uint8))


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the source ended early")
        view = view[count:]


def _secret(keyed: bool) -> bytes | None:
    return b"of this benchmark" if keyed else None


def _http_transport(chunks: int) -> Any:
    from torchft.checkpointing.http_transport import HTTPTransport  # takes a second; only where it is measured

    return HTTPTransport(timeout=timedelta(seconds=WAIT_S), num_chunks=chunks)


def _forget_peak() -> int:
    """Bytes of memory held now, from which the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}")


def main() -> None:
    """Obey until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    size, *seed = (int(word) for word in sys.argv[1:])
    tensors = state_of(size, seed[0] if seed else None)
    peer = Source(tensors) if seed else Receiver(tensors)
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        name, options = json.loads(line)
        print(json.dumps(getattr(peer, name)(**options)), file=answers)


if __name__ == "__main__":
    main()
