"""What did the faults of a benchmark cost? Pure functions over the event logs and the moments of the faults.

Stall and recovery are design terms: see ``ops.recovery``. The parts of a recovery follow one another from the kill to
the successor's first commit with a share of its own, and add up to it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from ops.bench.figures import ratio, spread
from ops.bench.watch import share_of_successor
from ops.history import Logs, commits_by_lineage, confirmed_chain, lineage_of, time_of

PARTS = ("notice", "fork", "process_groups", "model", "rehearse", "heal", "first_share")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: whom it hit, which life of it, and when (unix seconds)."""

    group: str
    incarnation: int
    t: float


@dataclasses.dataclass(kw_only=True)
class Costs:
    """Seconds, one for each fault."""

    stalls: list[float] = dataclasses.field(default_factory=list)
    recoveries: list[float] = dataclasses.field(default_factory=list)
    parts: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def add(self, *, stall: float | None, recovery: float | None, parts: dict[str, float] | None = None) -> None:
        """What one fault cost, as far as it is known."""
        self.stalls += [] if stall is None else [stall]
        self.recoveries += [] if recovery is None else [recovery]
        self.parts += [] if parts is None else [parts]


@dataclasses.dataclass(kw_only=True)
class Measured:
    """Everything that was measured, by kind of fault."""

    ours: Costs = dataclasses.field(default_factory=Costs)
    stock: Costs = dataclasses.field(default_factory=Costs)
    node: Costs = dataclasses.field(default_factory=Costs)
    hung_group: Costs = dataclasses.field(default_factory=Costs)
    hung_rank: Costs = dataclasses.field(default_factory=Costs)
    cold: Costs = dataclasses.field(default_factory=Costs)
    step_s: float | None = None
    stock_step_s: float | None = None
    confirmed_after_burial: int | None = None
    """Commits of incarnations that woke up buried and that only they made: must be none of the confirmed ones."""


def figures(found: Measured) -> dict[str, Any]:
    """The figures of ``bench recovery``; None where nothing was measured."""
    ours, stock = spread(found.ours.stalls), spread(found.stock.stalls)
    back, stock_back = spread(found.ours.recoveries), spread(found.stock.recoveries)
    return {
        "stall_s": ours,
        "replica_recovery_s": back,
        "recovery_parts_s": medians(found.ours.parts),
        "hang_stall_s": spread([*found.hung_group.stalls, *found.hung_rank.stalls]),
        "hang_group_stall_s": spread(found.hung_group.stalls),
        "hang_rank_stall_s": spread(found.hung_rank.stalls),
        "confirmed_after_burial": found.confirmed_after_burial,
        "node_loss_stall_s": spread(found.node.stalls),
        "node_loss_recovery_s": spread(found.node.recoveries),
        "cold_torchrun_recovery_s": spread(found.cold.recoveries),
        "step_s": found.step_s,
        "stock": {"stall_s": stock, "replica_recovery_s": stock_back, "step_s": found.stock_step_s},
        "stall_ratio": ratio(stock, ours),
        "recovery_ratio": ratio(stock_back, back),
    }


def medians(parts: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """The median of each part."""
    if not parts:
        return None
    return {name: statistics.median(each[name] for each in parts) for name in PARTS}


def recovery_of(logs: Logs, fault: Fault) -> float | None:
    """From the fault to the successor's first commit with a share of its own."""
    back = share_of_successor(logs, fault.group, fault.incarnation)
    return None if back is None else back - fault.t


def parts_of(logs: Logs, fault: Fault) -> dict[str, float] | None:
    """The parts of a recovery under a launcher; None where its logs do not tell them."""
    back = share_of_successor(logs, fault.group, fault.incarnation)
    exits = [e for e in logs.of("launcher", "exit") if e.get("group") == fault.group and time_of(e) >= fault.t]
    starts = [e for e in logs.of(fault.group, "start") if int(e.get("incarnation") or 0) > fault.incarnation]
    if back is None or not exits or not starts or "began_t" not in starts[0]:
        return None
    noticed, start = time_of(exits[0]), starts[0]
    began, took = float(start["began_t"]), start["parts_s"]
    model, rehearse = float(took.get("model", 0.0)), float(took.get("rehearse", 0.0))
    heals = [e for e in logs.of(fault.group, "heal") if time_of(start) <= time_of(e) <= back]
    heal = float(heals[0].get("seconds") or 0.0) if heals else 0.0
    return {
        "notice": noticed - fault.t,
        "fork": began - noticed,
        "process_groups": time_of(start) - began - model - rehearse,
        "model": model,
        "rehearse": rehearse,
        "heal": heal,
        "first_share": back - time_of(start) - heal,
    }


def burial_of(logs: Logs, fault: Fault) -> float | None:
    """When the lighthouse declared the life that was hit lost."""
    for event in logs.of("lighthouse", "departure"):
        if event.get("group") == fault.group and event.get("incarnation") == fault.incarnation:
            return time_of(event)
    return None


def confirmed_after_burial(logs: Logs, faults: Sequence[Fault]) -> int:
    """Confirmed commits that only a buried incarnation made, after its burial. Anything but 0 is a fault of ours."""
    chain = set(confirmed_chain(logs.of("lighthouse")).lineages)
    makers = commits_by_lineage(logs)
    count = 0
    for fault in faults:
        buried = burial_of(logs, fault)
        for event in logs.of(fault.group, "commit"):
            lineage = lineage_of(event)
            late = buried is not None and time_of(event) > buried and event.get("incarnation") == fault.incarnation
            if late and lineage in chain and {group for group, _ in makers[lineage]} == {fault.group}:
                count += 1
    return count
