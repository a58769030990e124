"""What does a rank tell the world? Its group's event log and metrics, the faults injected into it, its beginning."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist

from configs import failpoints as failpoint_syntax
from configs.digest import digest as config_digest
from configs.run_folder import EventSink, RunFolder, read_events
from configs.schema import Config
from replica_groups.identity import Place
from trainer.connection import Connection
from trainer.failpoints import Failpoints
from trainer.laps import Laps
from trainer.metrics import GroupMetrics, serve


def event_sink(config: Config, place: Place, connection: Connection, run: RunFolder) -> EventSink:
    """Rank 0 writes the group's log and feeds its metrics; the others write nothing."""
    if place.rank:
        return lambda event, **fields: None
    metrics = GroupMetrics(run=config.job.name, group=place.group)
    metrics.replay(e for e in read_events(run.event_log(place.group)))
    connection.endpoint = serve(
        metrics.registry, host=connection.host, port=config.metrics.port, warn=print, tls=connection.tls
    )

    def sink(event: str, **fields: Any) -> None:
        metrics.observe(connection.log(event, **fields))

    return sink


def set_failpoints(config: Config, place: Place, connection: Connection, run: RunFolder) -> Failpoints:
    return Failpoints(
        [failpoint_syntax.parse(text) for text in config.chaos.failpoints],
        group=place.group,
        rank=place.rank,
        past=read_events(run.event_log(place.group)),
        sink=connection.log,
    )


def announce(place: Place, sink: EventSink, config: Config, connection: Connection, laps: Laps) -> None:
    """The ``start`` event, with the pids of all ranks. Collective."""
    pids: list[Any] = [None] * place.world
    dist.all_gather_object(pids, (socket.gethostname(), os.getpid()))
    host = socket.gethostname()
    sink(
        "start",
        pids=[pid for where, pid in pids if where == host],
        host=host,
        ranks=place.world,
        config_digest=config_digest(config),
        endpoint={"metrics": connection.endpoint},
        began_t=laps.began_t,
        parts_s=laps.seconds,
    )
