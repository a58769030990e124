"""Gives the training thread its microbatches, read ahead where it says what comes next.

``plan`` names the microbatches that will be asked for, in order, and may name more than this attempt's (the next
step's, as far as it can be foreseen); ``get`` returns one. A batch is kept while the plan names it, so a discarded
attempt reads nothing twice, and dropped by the first plan that does not. What ``get`` returns never depends on the
plan, on earlier calls or on workers: any microbatch can be had at any time. Used on the training thread only.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence

from trainer.data.batches import Batch, Batches
from trainer.data.workers import Prefetcher, WorkersLost


class Loader:
    """``workers`` processes read ahead, each up to ``prefetch`` microbatches; with 0 workers ``get`` reads itself."""

    def __init__(self, batches: Batches, *, log: Callable[[str], None], workers: int = 0, prefetch: int = 2) -> None:
        self.batches = batches
        self._log = log
        self._plan: tuple[int, ...] = ()
        self._held: dict[int, Batch] = {}
        self._prefetcher: Prefetcher | None = None
        if workers and multiprocessing.current_process().daemon:
            log("no loader workers: a daemonic process may not start any; reading in the training thread")
        elif workers:
            self._prefetcher = Prefetcher(batches, workers=workers, prefetch=prefetch)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Processes that read ahead; empty while they start and with 0 workers."""
        return self._prefetcher.pids if self._prefetcher else ()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Microbatches asked of the workers and not yet taken from them."""
        return self._prefetcher.in_flight if self._prefetcher else ()

    @property
    def held(self) -> tuple[int, ...]:
        """Microbatches in memory here."""
        return tuple(self._held)

    def wait_until_ready(self) -> None:
        """Wait for the workers to start. Not needed: until then ``get`` reads without them."""
        if self._prefetcher:
            try:
                self._prefetcher.wait_until_ready()
            except WorkersLost as lost:
                self._go_on_alone(lost)

    def plan(self, microbatches: Sequence[int]) -> None:
        """What will be asked for from now on, in order. Drops everything else."""
        self._plan = tuple(dict.fromkeys(microbatches))
        self._held = {m: batch for m, batch in self._held.items() if m in self._plan}
        self._request()

    def get(self, microbatch: int) -> Batch:
        """A microbatch, from what was read ahead or read now."""
        self._collect(microbatch)
        if microbatch not in self._held:
            batch = self.batches[microbatch].batch(microbatch)
            if microbatch not in self._plan:
                return batch
            self._held[microbatch] = batch
        return self._held[microbatch]

    def close(self) -> None:
        """End the workers."""
        if self._prefetcher:
            self._prefetcher.close()
            self._prefetcher = None

    def _request(self) -> None:
        if self._prefetcher:
            try:
                self._prefetcher.want([m for m in self._plan if m not in self._held])
                self._prefetcher.drop_unwanted(self._plan)
            except WorkersLost as lost:
                self._go_on_alone(lost)

    def _collect(self, microbatch: int) -> None:
        """Take what the workers have read until the wanted one is there, if it will be."""
        try:
            while self._prefetcher and microbatch not in self._held and self._prefetcher.has(microbatch):
                arrived, rows = self._prefetcher.take()
                if arrived in self._plan:
                    self._held[arrived] = rows.batch(arrived)
        except WorkersLost as lost:
            self._go_on_alone(lost)

    def _go_on_alone(self, lost: WorkersLost) -> None:
        """Lost workers cost nothing but time: whatever they would have read is read here."""
        self._log(f"loader: {lost}; reading in the training thread from now on")
        if self._prefetcher:
            # A worker that hangs is waited for on another thread.
            threading.Thread(target=self._prefetcher.close, name="loader-close", daemon=True).start()
        self._prefetcher = None
