"""Everything one rank's training consists of, built once by ``trainer.build``; constructors only assign."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from configs.run_folder import EventSink
from configs.words import Lineage
from replica_groups.plan import BatchShape
from replica_groups.reduce import GradientReducer
from replica_groups.seat import Seat
from replica_groups.signals import Signals
from replica_groups.vitals import Vitals
from trainer.compute import Compute, Loader
from trainer.failpoints import Failpoints
from trainer.phases import Phases
from trainer.schedule import Schedule
from trainer.sentinel import Sentinel


@dataclasses.dataclass(kw_only=True)
class Parts:
    """The parts of one rank."""

    group: str
    rank: int
    steps: int
    max_norm: float
    digest_interval: int
    nonfinite_limit: int
    """Skipped steps in a row that stop the run; 1 with ``nonfinite = "stop"``."""
    shape: BatchShape
    model: nn.Module
    params: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    loader: Loader
    reducer: GradientReducer
    compute: Compute
    sentinel: Sentinel
    seat: Seat
    signals: Signals
    phases: Phases
    failpoints: Failpoints
    vitals: Vitals
    sink: EventSink
    """Writes the group's events; does nothing on ranks other than 0."""
    report_end: Callable[[Lineage], None]
    """Tells the lighthouse that the last state is published; does nothing on ranks other than 0."""
