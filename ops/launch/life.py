"""One life of a group on this machine: its ranks' processes, and what its event log has told of it so far?

A life begins with the start of all local ranks and is over when the last has ended. ``LifeLog`` follows the group's
event log from the life's beginning: the incarnation number, whether it committed anything, when it first committed a
share of its own. Used by the group's supervisor, on its thread.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.run_folder import RunFolder
from ops.launch import netns
from ops.launch.ranks import RankFunction, RankSpec, enter
from ops.launch.warm import Child, Warm, wait_for
from ops.tail import Tail

REAP_S = 30.0
"""How long a killed process may take to be gone (its memory is freed meanwhile) before we go on without it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which ranks of which group run here, and where they meet. ``devices``: the machine's device of each local rank.
    ``meet``: host and port of the group's store where it is fixed from outside (several nodes)."""

    group: str
    world: int
    first_rank: int = 0
    local_ranks: int
    devices: tuple[int, ...]
    lighthouse: str | None
    meet: tuple[str, int] | None = None
    netns: str | None = None
    """The network namespace of its ranks; None: the launcher's own."""


@dataclasses.dataclass
class LifeLog:
    """What the group's event log says of this life."""

    group: str
    tail: Tail
    incarnation: int | None = None
    committed: bool = False
    first_share_t: float | None = None
    exit_reason: str = ""
    """Why rank 0 says that it ends."""

    def read(self) -> None:
        """Take in what was written since the last call."""
        for event in self.tail.read():
            self.incarnation = event.get("incarnation") or self.incarnation
            if event.get("event") == "exit":
                self.exit_reason = str(event.get("reason") or "")
            elif event.get("event") == "commit":
                self.committed = True
                if self.first_share_t is None and (event.get("shares") or {}).get(self.group):
                    self.first_share_t = float(event["t"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Life:
    """The processes of one life, by rank, and its log."""

    name: str
    ranks: Mapping[int, Child]
    log: LifeLog

    def signal_all(self, number: int, *, rank: int | None = None) -> None:
        """Send a signal to every rank that still runs, or to one."""
        for each, child in self.ranks.items():
            if rank in (None, each):
                child.signal(number)

    def ask_to_drain(self) -> None:
        """Rank 0 tells its fellows; a node without it has nobody to ask."""
        if 0 in self.ranks:
            self.ranks[0].signal(signal.SIGTERM)


def start_life(*, layout: Layout, folder: RunFolder, warm: Warm, function: RankFunction, config: Any) -> Life:
    """Start all local ranks. The socket of the group's store is bound here, so that its port is never guessed."""
    log = LifeLog(layout.group, Tail(folder.event_log(layout.group), from_end=True))
    listener = _listen(layout)
    host, port = layout.meet or ("127.0.0.1", listener.getsockname()[1] if listener else 0)
    name = uuid.uuid4().hex if layout.meet is None else ""
    children = {}
    try:
        for local in range(layout.local_ranks):
            rank = layout.first_rank + local
            spec = RankSpec(
                group=layout.group,
                rank=rank,
                world=layout.world,
                local_rank=layout.devices[local],
                store_host=host,
                store_port=port,
                life=name,
                early_log=early_log(folder, group=layout.group, rank=rank),
                lighthouse=layout.lighthouse,
                listener=listener if rank == 0 else None,
                netns=layout.netns,
            )
            children[rank] = warm.start(enter, function, config, spec)
    finally:
        if listener is not None:
            listener.close()  # rank 0 has its own
    return Life(name=name, ranks=children, log=log)


def take_codes(running: dict[int, Child], ended: list[Any]) -> dict[int, int]:
    """Move the ranks that have ended out of ``running``. Returns their codes."""
    codes: dict[int, int] = {}
    for rank, child in list(running.items()):
        if child in ended and (code := child.code()) is not None:
            codes[rank] = code
            del running[rank]
    return codes


def reap(running: dict[int, Child]) -> None:
    """Wait until the killed are gone."""
    deadline = time.monotonic() + REAP_S
    while running and (left := deadline - time.monotonic()) > 0:
        take_codes(running, wait_for(list(running.values()), left))


def early_log(folder: RunFolder, *, group: str, rank: int) -> Path:
    """Where a rank prints before its incarnation has a number."""
    return folder.root / "logs" / group / "early" / f"rank{rank}.log"


def last_lines(folder: RunFolder, *, group: str, incarnation: int | None, rank: int, count: int = 10) -> list[str]:
    """The end of what a rank printed, for people."""
    path = early_log(folder, group=group, rank=rank)
    if incarnation is not None:
        own = folder.rank_log(group=group, incarnation=incarnation, rank=rank)
        path = own if own.exists() else path
    if not path.exists():
        return []
    return path.read_text(errors="replace").splitlines()[-count:]


def _listen(layout: Layout) -> socket.socket | None:
    """The bound socket of the group's store, on the node that has rank 0."""
    if layout.first_rank != 0:
        return None
    address = layout.meet or ("127.0.0.1", 0)
    if layout.netns is not None:
        return netns.inside(layout.netns, lambda: socket.create_server(address))
    return socket.create_server(address)
