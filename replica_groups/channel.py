"""How do rank k of all groups sum tensors, and how are they rid of a sum that will never end?

A channel is one configured process group of one quorum id. Sums are posted in a fixed order and end out of sight of the
main thread, which waits for "done" or "lost". Gloo cannot be aborted: ``abort()`` and even dropping the object block
until the operation's own timeout. So a lost channel is *abandoned* with its buffers to a reaper (a paused peer that
wakes still writes into them), and the next quorum gets a new one. NCCL is aborted first.

Only this module knows torchft's process groups and the difference between gloo and NCCL.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroup, ProcessGroupGloo, ProcessGroupNCCL

_REAP_EVERY_S = 1.0


class Beside:
    """Runs blocking calls beside the main thread. A call that never returns keeps its thread; the process does not
    wait for it, for ranks end through ``os._exit``."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=256, thread_name_prefix="beside")

    def run(self, call: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(call, *args, **kwargs)


class Channel:
    """Sums of one quorum id across the groups, for one rank."""

    def __init__(self, *, process_group: ProcessGroup | None, quorum_id: int, size: int) -> None:
        self.process_group = process_group
        self.quorum_id = quorum_id
        self.size = size
        self._works: list[Any] = []
        self._buffers: list[torch.Tensor] = []
        self._error: Exception | None = None

    @property
    def on_device(self) -> bool:
        """Whether tensors must lie on the accelerator to be summed."""
        return isinstance(self.process_group, ProcessGroupNCCL)

    @property
    def broken(self) -> bool:
        """Whether a sum has failed: the next attempt needs a fresh quorum id."""
        return self._error is not None

    def post(self, buffer: torch.Tensor) -> None:
        """Start summing ``buffer`` in place over all groups. Never raises: it is called inside a backward that must
        end; the error comes out of ``finish``."""
        if self.process_group is None or self._error is not None:
            return
        self._buffers.append(buffer)
        try:
            self._works.append(self.process_group.allreduce([buffer], dist.AllreduceOptions()))
        except Exception as error:  # noqa: BLE001  any torch error ends the attempt, not the backward
            self._error = error

    def finish(self) -> None:
        """Wait until everything posted is summed. Blocking: runs beside the main thread. Raises what went wrong."""
        if self._error is None:
            try:
                for work in self._works:
                    work.wait()
                for device in {b.device for b in self._buffers if b.device.type != "cpu"}:
                    torch.accelerator.synchronize(device)
            except Exception as error:  # noqa: BLE001  gloo and NCCL raise bare RuntimeErrors of many kinds
                self._error = error
        if self._error is not None:
            raise self._error
        self._works.clear()
        self._buffers.clear()

    def is_idle(self) -> bool:
        """Whether no operation of this channel can touch its buffers any more."""
        return all(work.is_completed() for work in self._works)


class Reaper:
    """Holds abandoned channels until they can be dropped without blocking anybody."""

    def __init__(self) -> None:
        self._held: list[tuple[Channel, float]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def abandon(self, channel: Channel, *, operation_timeout_s: float) -> None:
        """Take over a channel whose operations may never end."""
        if isinstance(channel.process_group, ProcessGroupNCCL):
            channel.process_group.abort()
        with self._lock:
            self._held.append((channel, time.monotonic() + operation_timeout_s + _REAP_EVERY_S))
            if self._thread is None:
                self._thread = threading.Thread(target=self._reap, name="reaper", daemon=True)
                self._thread.start()

    @property
    def held(self) -> int:
        return len(self._held)

    def _reap(self) -> None:
        while True:
            time.sleep(_REAP_EVERY_S)
            now = time.monotonic()
            with self._lock:
                # The deadline covers operations whose works we never got (a configure that hangs).
                done = [c for c, deadline in self._held if now > deadline and c.is_idle()]
                self._held = [(c, d) for c, d in self._held if all(c is not x for x in done)]
            done.clear()


def use_interface(interface: str) -> None:
    """Make gloo listen on this network interface only. Before any process group exists."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def connect(
    *,
    backend: str,
    store_address: str,
    replica_id: str,
    rank: int,
    size: int,
    quorum_id: int,
    group_rank: int,
    group_size: int,
    timeout_s: float,
) -> Channel:
    """Connect rank ``group_rank`` of all participants. Blocking up to ``timeout_s``: runs beside the main thread."""
    if size == 1:
        return Channel(process_group=None, quorum_id=quorum_id, size=1)
    timeout = datetime.timedelta(seconds=timeout_s)
    made = ProcessGroupNCCL(timeout=timeout) if backend == "nccl" else ProcessGroupGloo(timeout=timeout)
    made.configure(
        f"{store_address}/{quorum_id}/{group_rank}", replica_id, rank, size, quorum_id, group_rank, group_size
    )
    return Channel(process_group=made, quorum_id=quorum_id, size=size)
