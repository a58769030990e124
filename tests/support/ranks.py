"""Runs a function as the ranks of one group: real processes, real gloo, no open port but gloo's own on loopback.

Processes are forked from a server that has imported torch once. A function that raises fails the test with its
traceback; ranks that do not end in time are killed by pid.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOAD = ["torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint", "tests.support.ranks"]


def run_ranks(function: Callable[..., Any], world: int, folder: Path, *args: Any, limit_s: float = 60.0) -> list[Any]:
    """``[function(rank, world, *args) for rank in range(world)]``, each in its own process with a gloo default group.

    ``function`` must be importable; results are pickled. ``folder`` is for the rendezvous.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store = str(folder / f"rendezvous-{os.urandom(4).hex()}")
    ends: list[Connection] = []
    processes = []
    for rank in range(world):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(theirs, function, rank, world, store, args), daemon=True)
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    try:
        return _collect(ends, limit_s)
    finally:
        for process in processes:
            process.join(0.2)
            if process.is_alive():
                process.kill()
            process.join()


def _collect(ends: list[Connection], limit_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ends):
        left = [end for rank, end in enumerate(ends) if rank not in results]
        ready = wait(left, timeout=limit_s)
        assert ready, f"ranks {[ends.index(end) for end in left]} did not answer within {limit_s} s"
        for end in ready:
            rank = ends.index(end)  # type: ignore[arg-type]
            try:
                good, value = end.recv()  # type: ignore[union-attr]
            except EOFError:
                raise AssertionError(f"rank {rank} died") from None
            assert good, f"rank {rank}:\n{value}"
            results[rank] = value
    return [results[rank] for rank in range(len(ends))]


def _rank(end: Connection, function: Callable[..., Any], rank: int, world: int, store: str, args: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
        answer = (True, function(rank, world, *args))
    except BaseException:  # noqa: BLE001 - the process's edge: the test shows it
        answer = (False, traceback.format_exc())
    with contextlib.suppress(OSError):
        end.send(answer)
        end.close()
    os._exit(0)
