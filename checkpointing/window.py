"""What does a source offer in one attempt? Its shards as bytes, and their manifest once the digests are taken.

Digests are taken when the first healer asks, for with many groups most sources are never asked; by a few threads, for
the healer waits for them. Made and used by the state server, which also says when the window closes.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from checkpointing.memory import Buffer, ShardBytes
from checkpointing.state import Clocks, describe
from checkpointing.wire import Entry, Manifest, Request, chunk_digest, count_chunks

_HASHERS = min(4, len(os.sched_getaffinity(0)))


class Window:
    """One state on offer. All but ``take_digests`` is guarded by the server's lock."""

    def __init__(
        self, request: Request, tensors: Mapping[str, torch.Tensor], clocks: Clocks, *, kind: str, chunk_bytes: int
    ) -> None:
        self.request = request
        self.clocks = clocks
        self.kind = kind
        self.chunk_bytes = chunk_bytes
        self.shards = {name: (describe(tensor), ShardBytes(tensor)) for name, tensor in tensors.items()}
        self.manifest: Manifest | None = None
        """Appears once the digests are taken."""
        self.hashing = False
        self.closed = threading.Event()
        self.users = 0
        """Threads that may touch the tensors."""
        self.sockets: set[socket.socket] = set()
        self.sent = 0
        """Chunks, to whomever."""

    def take_digests(self) -> Manifest | None:
        """Hash every chunk; None when the window closed meanwhile. No thread of it is left when it returns."""
        pieces = [
            (data, start, min(start + self.chunk_bytes, data.nbytes))
            for _, data in self.shards.values()
            for start in range(0, data.nbytes, self.chunk_bytes)
        ]
        own = threading.local()

        def digest(piece: tuple[ShardBytes, int, int]) -> str:
            if self.closed.is_set():
                return ""
            if not hasattr(own, "buffer"):
                own.buffer = Buffer()
            data, start, stop = piece
            return chunk_digest(data.readable(start, stop, own.buffer), kind=self.kind)

        with ThreadPoolExecutor(_HASHERS, thread_name_prefix="state-digests") as pool:
            digests = pool.map(digest, pieces)
            entries = []
            for name, (shard, data) in self.shards.items():
                own_digests = itertools.islice(digests, count_chunks(data.nbytes, self.chunk_bytes))
                entries.append(Entry(name, shard, data.nbytes, tuple(own_digests)))
        if self.closed.is_set():
            return None
        return Manifest(self.request, self.clocks, self.kind, self.chunk_bytes, tuple(entries))
