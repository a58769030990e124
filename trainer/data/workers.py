"""Prefetches microbatches in processes of torchdata's StatefulDataLoader.

The data loader's sampler is a live list of what is wanted, so a new plan costs no restart: it replaces the list, and
what was asked for already and is no longer wanted is dropped when it arrives. Workers hold no state, so none is saved.

Workers come from a fork server: a fork of the rank would copy its threads' locks and hold its sockets open, and a
closed socket is how its death is noticed. They start on a thread while the loader reads without them, leave SIGTERM
and SIGINT to the rank, and die with it. Called by the loader alone, on the training thread.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from trainer.data.batches import Batches, Rows
from trainer.data.lifetime import die_with_owner, outlive_signals

_ANSWER_LIMIT_S = 20.0
"""A worker that does not answer for so long (a cold start takes 3 s on a busy core) is given up."""
_LOSSES = (RuntimeError, OSError, EOFError)
"""What the data loader and its queues raise when a worker is lost."""


class WorkersLost(Exception):
    """The workers are gone; everything can be read without them."""


class Prefetcher:
    """Reads the wanted microbatches ahead, in order."""

    def __init__(self, batches: Batches, *, workers: int, prefetch: int) -> None:
        self._wanted = _Wanted()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*set_vital", category=UserWarning)
            self._loader = StatefulDataLoader(
                batches,  # a map from numbers to rows
                batch_size=None,
                sampler=self._wanted,
                num_workers=workers,
                prefetch_factor=prefetch,
                collate_fn=_unchanged,
                worker_init_fn=_start_worker,
                multiprocessing_context=_context(),
                persistent_workers=True,
                timeout=_ANSWER_LIMIT_S,
                snapshot_every_n_steps=0,
            )
        self._rows: Iterator[Rows] | None = None
        self._error: BaseException | None = None
        self._starting = threading.Thread(target=self._start, name="loader-start", daemon=True)
        self._starting.start()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Asked of the workers and not yet taken."""
        return tuple(self._wanted.sent)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Not yet asked of the workers."""
        return tuple(self._wanted.waiting)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers; empty until they have started."""
        return tuple(worker.pid for worker in getattr(self._rows, "_workers", ()))

    def ready(self) -> bool:
        """Whether the workers have started. Raises WorkersLost when they could not."""
        if self._starting.is_alive():
            return False
        if self._error is not None:
            raise WorkersLost(f"workers did not start: {self._error}")
        return True

    def wait_until_ready(self) -> None:
        """Block until the workers have started. Raises WorkersLost when they cannot."""
        self._starting.join()
        self.ready()

    def want(self, microbatches: Sequence[int]) -> None:
        """Replace what is to be read; what is in flight is not asked for again."""
        in_flight = set(self._wanted.sent)
        waiting = deque(m for m in microbatches if m not in in_flight)
        if not self.ready():  # the starting thread walks the list of an empty sampler: give it nothing
            return
        self._wanted.waiting = waiting
        self._prime()

    def has(self, microbatch: int) -> bool:
        """Whether ``take`` will come to it."""
        return microbatch in self._wanted.sent or microbatch in self._wanted.waiting

    def take(self) -> tuple[int, Rows]:
        """The next microbatch in flight; blocks until its worker has read it. Raises WorkersLost."""
        self._prime()
        self._check_alive()
        assert self._rows is not None
        microbatch = self._wanted.sent[0]
        try:
            rows = next(self._rows)
        except _LOSSES as error:
            raise WorkersLost(str(error)) from error
        self._wanted.sent.popleft()
        return microbatch, rows

    def drop_unwanted(self, wanted: Collection[int]) -> None:
        """Take and forget what is in flight before anything wanted: so the workers begin with what is."""
        while self._wanted.sent and self._wanted.sent[0] not in wanted and self.ready():
            self.take()

    def close(self) -> None:
        """End the workers."""
        self._starting.join()
        shut_down: Callable[[], None] = getattr(self._rows, "_shutdown_workers", lambda: None)
        shut_down()

    def _start(self) -> None:
        """Runs on a thread of its own: a cold fork server imports torch first."""
        try:
            self._rows = iter(self._loader)
        except Exception as error:  # noqa: BLE001  # the edge of a thread: told to the training thread
            self._error = error

    def _prime(self) -> None:
        """When nothing is in flight the data loader has ended its epoch: begin another, which asks for what waits."""
        if self._wanted.sent or not self._wanted.waiting:
            return
        self._check_alive()
        try:
            self._rows = iter(self._loader)
        except _LOSSES as error:
            raise WorkersLost(str(error)) from error

    def _check_alive(self) -> None:
        """The data loader itself would look only after its time limit."""
        for worker in getattr(self._rows, "_workers", ()):
            if not worker.is_alive():
                raise WorkersLost(f"worker {worker.pid} ended with exit code {worker.exitcode}")


class _Wanted:
    """A sampler whose end is not final: more may be wanted later."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.sent: deque[int] = deque()

    def __iter__(self) -> _Wanted:
        return self

    def __next__(self) -> int:
        if not self.waiting:
            raise StopIteration
        microbatch = self.waiting.popleft()
        self.sent.append(microbatch)
        return microbatch


def _context() -> BaseContext:
    """Fork server processes; in a child of a fork server, from that same, warm server.

    The standard library would start a second, cold one: its child knows the server's address but not that it runs.
    """
    server: Any = forkserver._forkserver
    if server.get_inherited_fds() is not None and server._forkserver_pid is None:
        server.ensure_running = _already_running
    return multiprocessing.get_context("forkserver")


def _already_running() -> None:
    pass


def _start_worker(_: int) -> None:
    die_with_owner()
    outlive_signals()


def _unchanged(rows: Rows) -> Rows:
    return rows
