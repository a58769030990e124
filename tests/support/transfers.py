"""Sources and healers of peer transfer for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch

from checkpointing.transfer import StateServer, fetch
from tests.support.states import clocks, lineage

ROWS = 20_000  # two matrices of 400 kB
CHUNK = 32 << 10
STATE = lineage(12)
WANTED = {"attempt": 5, "quorum_id": lineage(12, 4).quorum_id, "lineage": STATE}


def serving() -> Iterator[Callable[..., StateServer]]:
    """Makes sources of the wanted state (``opened``), or ones that have not opened their window yet. For a fixture."""
    made: list[StateServer] = []

    def make(held: dict[str, torch.Tensor], *, opened: bool = True, **options) -> StateServer:
        server = StateServer(chunk_bytes=CHUNK, **options)
        made.append(server)
        if opened:
            server.open(**WANTED, tensors=held, clocks=clocks(12))
        return server

    yield make
    for server in made:
        server.stop()


class Healer:
    """Destinations full of garbage, and what happened to them."""

    def __init__(self, like: dict[str, torch.Tensor]) -> None:
        self.tensors = {name: torch.full_like(tensor, 99) for name, tensor in like.items()}
        self.first_bytes = 0
        self.leave = threading.Event()

    def fetch(self, *sources: str, **options):
        return fetch(
            sources,
            **{**WANTED, **options},
            tensors=self.tensors,
            on_first_byte=self._first,
            stop=self.leave.is_set,
        )

    def _first(self) -> None:
        assert all(tensor.eq(99).all() for tensor in self.tensors.values()), "written before it was called void"
        self.first_bytes += 1
