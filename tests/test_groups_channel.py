"""Sums across groups over real gloo: they add up, and one that will never end is left at once, buffers and all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from replica_groups import channel as channels
from replica_groups.channel import Beside, Channel, Reaper, connect, use_interface
from replica_groups.identity import serve_seat_store
from replica_groups.signals import AttemptOver, Signals
from tests.support.grants import death, grant, quorum_id
from tests.support.ranks import run_ranks

LIMIT_S = 30


@pytest.fixture(autouse=True)
def _loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "unset")
    use_interface("lo")


@pytest.fixture
def store() -> Iterator[str]:
    server, address = serve_seat_store(host="127.0.0.1", timeout_s=LIMIT_S)
    yield address
    del server


@pytest.fixture
def beside() -> Beside:
    return Beside()


def joining(store: str, rank: int, *, size: int = 2, running: int = 1, timeout_s: float = LIMIT_S) -> dict[str, Any]:
    return {
        "backend": "gloo",
        "store_address": store,
        "replica_id": f"g{rank}:1",
        "rank": rank,
        "size": size,
        "quorum_id": quorum_id(running),
        "group_rank": 0,
        "group_size": 1,
        "timeout_s": timeout_s,
    }


def pair(beside: Beside, store: str, *, running: int = 1, timeout_s: float = LIMIT_S) -> tuple[Channel, Channel]:
    """Two groups of this process, connected."""
    both = [beside.run(connect, **joining(store, r, running=running, timeout_s=timeout_s)) for r in (0, 1)]
    return both[0].result(LIMIT_S), both[1].result(LIMIT_S)


def test_sums_add_up_in_the_order_they_are_posted(store, beside):
    both = pair(beside, store)
    buffers = [[torch.full((n,), r + n, dtype=torch.int64) for n in (3, 1, 2)] for r in (0, 1)]
    for channel, mine in zip(both, buffers, strict=True):
        for buffer in mine:
            channel.post(buffer)
    for end in [beside.run(channel.finish) for channel in both]:
        end.result(LIMIT_S)
    for mine in buffers:
        assert [b.tolist() for b in mine] == [[7, 7, 7], [3], [5, 5]]
    assert both[0].is_idle()
    assert not both[0].broken


def test_channel_serves_attempt_after_attempt(store, beside):
    both = pair(beside, store)
    for n in range(3):
        buffers = [torch.tensor([n, r]) for r in (0, 1)]
        for channel, buffer in zip(both, buffers, strict=True):
            channel.post(buffer)
        for end in [beside.run(channel.finish) for channel in both]:
            end.result(LIMIT_S)
        assert [b.tolist() for b in buffers] == [[2 * n, 1]] * 2


def test_one_participant_needs_no_process_group(store):
    channel = connect(**joining(store, 0, size=1))
    buffer = torch.tensor([4])
    channel.post(buffer)
    channel.finish()
    assert channel.process_group is None
    assert buffer.tolist() == [4]


class Failing:
    """A process group whose second sum cannot even be started."""

    def __init__(self) -> None:
        self.posted = 0

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> object:
        self.posted += 1
        raise RuntimeError("connection reset by peer")


def test_post_never_raises_inside_backward_and_finish_says_why():
    failing = Failing()
    channel = Channel(process_group=failing, quorum_id=1, size=2)
    for _ in range(3):
        channel.post(torch.zeros(2))
    assert failing.posted == 1  # nothing follows what failed
    assert channel.broken
    with pytest.raises(RuntimeError, match="connection reset by peer"):
        channel.finish()
    with pytest.raises(RuntimeError, match="connection reset by peer"):
        channel.finish()


def test_connecting_to_an_absent_peer_can_be_left_at_once(store, beside):
    """torchft's configure blocks for its whole timeout; the main thread must not."""
    signals = Signals()
    attempt = grant("g0", "g1")
    future = beside.run(connect, **joining(store, 0, timeout_s=2.0))
    threading.Timer(0.05, signals.notice, [death("g1")]).start()
    with pytest.raises(AttemptOver):
        signals.wait(future, over=lambda: signals.lost(attempt))
    assert not future.done()
    again = pair(beside, store, running=2)  # and the next quorum connects while the old one still hangs
    assert [channel.size for channel in again] == [2, 2]
    with pytest.raises(RuntimeError):
        future.result(LIMIT_S)


class Slow:
    """Operations that end when they are told to."""

    def __init__(self) -> None:
        self.done = False

    def is_completed(self) -> bool:
        return self.done


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(channels, "_REAP_EVERY_S", 0.02)


def test_reaper_holds_a_channel_while_its_operations_can_touch_its_buffers(quick):
    slow = Slow()
    channel = Channel(process_group=None, quorum_id=1, size=2)
    channel._works = [slow]
    reaper = Reaper()
    reaper.abandon(channel, operation_timeout_s=0.0)
    idle = Channel(process_group=None, quorum_id=2, size=2)
    reaper.abandon(idle, operation_timeout_s=0.0)
    wait_until(lambda: reaper.held == 1)  # the idle one goes first
    assert reaper._held[0][0] is channel
    slow.done = True
    wait_until(lambda: reaper.held == 0)


def test_reaper_keeps_a_channel_until_operations_it_knows_nothing_of_have_timed_out(quick):
    reaper = Reaper()
    kept = Channel(process_group=None, quorum_id=1, size=2)
    reaper.abandon(kept, operation_timeout_s=3600)
    reaper.abandon(Channel(process_group=None, quorum_id=2, size=2), operation_timeout_s=0)
    wait_until(lambda: reaper.held == 1)
    assert reaper._held[0][0] is kept


def wait_until(ready) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def _paused_peer(rank: int, world: int) -> dict[str, Any]:
    """Rank 1 is paused inside the reduction; rank 0 leaves it, sums with rank 2, and then rank 1 wakes."""
    channels._REAP_EVERY_S = 0.02
    store = serve_seat_store(host="127.0.0.1", timeout_s=LIMIT_S) if rank == 0 else (None, None)
    told: list[Any] = [None] * world
    dist.all_gather_object(told, (os.getpid(), store[1]))
    pids, address = [pid for pid, _ in told], told[0][1]
    if rank == 1:
        channel = connect(**joining(address, 1, timeout_s=8))
        dist.barrier()
        os.kill(os.getpid(), signal.SIGSTOP)
        # Awake again: it finishes what it was in the middle of.
        channel.post(torch.tensor([1000, 1000]))
        channel.finish()
        return {}
    if rank == 2:
        dist.barrier()
        channel = connect(**joining(address, 1, running=2))
        channel.post(torch.tensor([20, 20]))
        channel.finish()
        return {}
    return _survivor(address, pids)


def _survivor(address: str, pids: list[int]) -> dict[str, Any]:
    beside, signals, reaper = Beside(), Signals(), Reaper()
    attempt = grant("g0", "g1")
    channel = connect(**joining(address, 0, timeout_s=8))
    dist.barrier()
    lost = torch.tensor([1, 2])
    channel.post(lost)
    wait_until(lambda: Path(f"/proc/{pids[1]}/stat").read_text().split()[2] == "T")
    end: Future[None] = beside.run(channel.finish)
    threading.Timer(0.05, signals.notice, [death("g1")]).start()
    found: dict[str, Any] = {}
    try:
        signals.wait(end, over=lambda: signals.lost(attempt))
        found["left"] = False
    except AttemptOver:
        found["left"] = not end.done()
    reaper.abandon(channel, operation_timeout_s=0.0)
    found["running"] = not end.done()  # abandoning did not wait for gloo's timeout
    fresh = connect(**joining(address, 0, running=2))
    mine = torch.tensor([1, 2])
    fresh.post(mine)
    fresh.finish()
    reaper.abandon(Channel(process_group=None, quorum_id=2, size=2), operation_timeout_s=0.0)
    wait_until(lambda: reaper.held <= 1)  # this one has nothing to wait for
    found["held"] = [held is channel for held, _ in reaper._held]
    found["still running"] = not end.done()
    os.kill(pids[1], signal.SIGCONT)
    end.result(LIMIT_S)
    wait_until(lambda: reaper.held == 0)
    found["sum"] = mine.tolist()
    found["late"] = lost.tolist()
    return found


def test_paused_peer_is_left_at_once_and_writes_into_nobodys_buffers_when_it_wakes(tmp_path):
    found = run_ranks(_paused_peer, 3, tmp_path)[0]
    assert found["left"]
    assert found["running"]
    assert found["still running"]
    assert found["held"] == [True]
    assert found["sum"] == [21, 22]
    assert found["late"] == [1001, 1002]  # the abandoned buffers are what it wrote to
