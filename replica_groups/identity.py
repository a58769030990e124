"""Which rank of which group is this process, and how does it find its fellows?

A ``Place`` is made by whoever starts the process (the launcher, ``phalanx group`` or torchrun's environment); the rank
itself opens the group's store with it. The store is the group's own: no other group depends on it.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import socket
from collections.abc import Mapping

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands."""

    group: str
    rank: int
    world: int
    local_rank: int
    """Number of its device on this machine."""
    store_host: str
    store_port: int
    lighthouse: str | None = None
    """URL of the gateway; None: rank 0 starts one of its own."""
    listener: socket.socket | None = None
    """Rank 0 under a launcher: the already bound socket of the group's store."""
    life: str = ""
    """Names this life of the group to the launcher, before it has an incarnation number."""
    restart: str = ""
    """Sets this life apart in a store that outlives it. Not a ``life``: the next torchrun begins at 0 again."""
    under_torchrun: bool = False
    """The store at ``store_host:store_port`` is already served by somebody else."""


def place_from_environment(env: Mapping[str, str]) -> Place:
    """The place torchrun's variables name. Raises ValueError that lists what is missing."""
    needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in env]
    if missing:
        raise ValueError(
            f"not started by torchrun or phalanx: {', '.join(missing)} not set (use `phalanx launch CONFIG`)"
        )
    return Place(
        group=env.get("PHALANX_GROUP", "g0"),
        lighthouse=env.get("PHALANX_LIGHTHOUSE"),
        rank=int(env["RANK"]),
        world=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        store_host=env["MASTER_ADDR"],
        store_port=int(env["MASTER_PORT"]),
        under_torchrun=env.get("TORCHELASTIC_USE_AGENT_STORE", "False").lower() == "true",
        restart=env.get("TORCHELASTIC_RESTART_COUNT", ""),
    )


def open_group_store(place: Place, *, timeout_s: float) -> Store:
    """The group's rendezvous store. Rank 0 serves it on the launcher's socket where one was given."""
    timeout = datetime.timedelta(seconds=timeout_s)
    serves = place.rank == 0 and not place.under_torchrun
    if serves and place.listener is not None:
        # TCPStore closes the descriptor it is given: hand it one of its own.
        fd = os.dup(place.listener.fileno())
        store = TCPStore(
            place.store_host, place.store_port, None, True, timeout, False, master_listen_fd=fd, use_libuv=True
        )
    else:
        store = TCPStore(place.store_host, place.store_port, None, serves, timeout, False)
    return PrefixStore(f"phalanx/{place.life or place.restart}", store)


def serve_seat_store(*, host: str, timeout_s: float) -> tuple[TCPStore, str]:
    """A store for this incarnation's cross-group process groups, bound to ``host`` only, and its ``host:port``."""
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(
        host,
        port,
        None,
        True,
        datetime.timedelta(seconds=timeout_s),
        False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )
    return store, f"{host}:{port}"
