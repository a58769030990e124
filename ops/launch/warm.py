"""How does a rank start in a tenth of a second?

A server process imports everything once, before any rank is needed, and each rank is a fork of it. The server has
started no thread and touched no device (a fork would not have them), and it dies with the supervisor; ranks die with
it. multiprocessing keeps one forkserver per process, so there is one ``Warm`` in a supervisor.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

HEAVY = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torchft.process_group",
    "torchft.coordination",
    "torchdata.stateful_dataloader",
    "lighthouse.client",
    "trainer.main",
)
"""What a rank imports. A module that cannot be imported is passed over; the rank says so when it needs it."""

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SERVER_TRIES = 20
SERVER_RETRY_S = 0.1
"""How often, and after what pause, a start is tried again when the server is found dead."""
_poll = threading.Lock()
"""multiprocessing reads a child's exit code once, from whichever thread polls first: only one thread may poll."""


class Child:
    """A process forked from the warm server."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.pid: int = process.pid or 0
        self.sentinel: int = process.sentinel
        """Ready for reading once the process has ended."""

    def code(self) -> int | None:
        """Its exit code (negative: the signal that killed it), or None while it runs."""
        with _poll:
            return self._process.exitcode

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it, so that it does nothing until another one wakes it."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self.code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Warm:
    """The warm server, as the supervisor sees it."""

    def __init__(self, *, preload: Sequence[str] = HEAVY, threads: int = 1) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["ops.launch.preload", *preload])
        self._environment = dict.fromkeys(ONE_THREAD, str(threads))
        self._environment["RUST_LOG"] = os.environ.get("RUST_LOG", "warn")  # torchft's lines are many a step
        # The kernel ends the server when the thread that started it ends: this one lives as long as the process.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="warm")

    def start_server(self) -> None:
        """Let the server begin its imports, if it does not run already. Returns at once."""
        self._starter.submit(self._ensure).result()

    def start(self, function: Callable[..., None], *arguments: Any) -> Child:
        """Fork a process that calls ``function(*arguments)``; waits for the server's imports. Thread-safe."""
        for left in reversed(range(SERVER_TRIES)):
            try:
                self.start_server()
                process = self._context.Process(target=function, args=arguments)
                with _poll:  # starting polls all children
                    process.start()
            except (ConnectionError, EOFError, FileNotFoundError):  # the server died, all its forks with it
                if not left:
                    raise
                time.sleep(SERVER_RETRY_S)  # until the kernel lets us see that it did
            else:
                return Child(process)
        raise AssertionError("the last try returns or raises")

    def _ensure(self) -> None:
        with _environment(self._environment):
            multiprocessing.forkserver.ensure_running()

    def server_threads(self) -> int:
        """How many threads the server has. More than one would be lost in a fork."""
        pid = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        return len(list(Path(f"/proc/{pid}/task").iterdir())) if pid else 0


def wait_for(children: Sequence[Child], timeout_s: float | None, *others: Any) -> list[Any]:
    """The children that have ended (and of ``others``, things with a descriptor, those that are ready), once there is
    one or the time is up."""
    by_sentinel = {child.sentinel: child for child in children}
    ready = wait([*by_sentinel, *others], timeout_s)
    return [by_sentinel.get(r, r) if isinstance(r, int) else r for r in ready]


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that the server inherits and this process does not keep."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
