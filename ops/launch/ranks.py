"""What does a rank's process do before it is a rank?

It ties its life to the warm server's, puts what it prints into a file until the trainer opens the log of its
incarnation, and turns the launcher's ``RankSpec`` into the trainer's ``Place``. Runs in a forked child of the warm
server; the supervisor only pickles what is here.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.lifetime import die_with_parent
from ops.launch import netns


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankSpec:
    """Where one rank stands. ``listener``: rank 0's bound socket for the group's rendezvous store; ``early_log``: where
    it prints before its incarnation has a number."""

    group: str
    rank: int
    world: int
    local_rank: int
    store_host: str
    store_port: int
    life: str
    early_log: Path
    lighthouse: str | None = None
    listener: socket.socket | None = None
    netns: str | None = None
    """The network namespace it lives in; None: that of the launcher."""


RankFunction = Callable[[Any, RankSpec], None]
"""Called as ``function(config, spec)`` in the rank's process. Must be importable by name."""


def run_trainer(config: Any, spec: RankSpec) -> None:
    """Be a rank of the trainer. Ends the process itself."""
    from replica_groups.identity import Place  # heavy: only the warm server and its children import it
    from trainer.main import run_rank

    run_rank(
        config,
        Place(
            group=spec.group,
            rank=spec.rank,
            world=spec.world,
            local_rank=spec.local_rank,
            store_host=spec.store_host,
            store_port=spec.store_port,
            lighthouse=spec.lighthouse,
            listener=spec.listener,
            life=spec.life,
        ),
    )


def enter(function: RankFunction, config: Any, spec: RankSpec) -> None:
    """First and only function of a rank's process."""
    tie_to_server()
    print_into(spec.early_log)
    if spec.netns is not None:
        netns.enter(spec.netns)
    function(config, spec)


def tie_to_server() -> None:
    """Die with the warm server, and leave Ctrl-C to the supervisor."""
    server = sys.modules.get("ops.launch.preload")
    die_with_parent(parent=getattr(server, "SERVER_PID", None))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def print_into(path: Path) -> None:
    """Let stdout and stderr of this process append to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
