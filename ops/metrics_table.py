"""Which metrics are there? The table of ops/README.md, read from the registries that serve them.

A group's series appear with the first event that feeds them, so each is fed once, with values that mean nothing.

    python -m ops.metrics_table
"""

from __future__ import annotations

import dataclasses

from prometheus_client import CollectorRegistry

from configs.run_folder import Event
from lighthouse.metrics import Metrics
from ops.launch.metrics import LauncherMetrics
from trainer.metrics import GroupMetrics

NOT_TOLD = {"run", "le"}
"""Labels that every metric has, and the bucket bounds of histograms."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One metric."""

    server: str
    name: str
    kind: str
    labels: tuple[str, ...]
    """Besides ``run``."""
    text: str


def rows() -> list[Row]:
    """All metrics, by the process that serves them."""
    served = (("a group", _group()), ("the lighthouse", _lighthouse()), ("the launcher", _launcher()))
    return [row for server, registry in served for row in sorted(_rows(server, registry), key=lambda row: row.name)]


def table() -> str:
    """The rows as Markdown."""
    lines = ["| served by | metric | kind | labels besides `run` | meaning |", "|---|---|---|---|---|"]
    for row in rows():
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| {row.server} | `{row.name}` | {row.kind} | {labels} | {row.text.rstrip('.')} |")
    return "\n".join(lines)


def _rows(server: str, registry: CollectorRegistry) -> list[Row]:
    found = []
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = tuple(label for label in family.samples[0].labels if label not in NOT_TOLD)
        found.append(Row(server=server, name=name, kind=family.type, labels=labels, text=family.documentation))
    return found


def _group() -> CollectorRegistry:
    commit: Event = {
        "event": "commit",
        "t": 0.0,
        "step": 1,
        "outcome": "updated",
        "shares": {"g0": [0]},
        "tokens": 1,
        "seconds": 1.0,
        "loss": 1.0,
        "grad_norm": 1.0,
        "lr": 1.0,
        "join_stall_s": 0.0,
        "phases": {"compute": 1.0},
    }
    metrics = GroupMetrics(run="", group="g0")
    metrics.replay(
        [
            commit,
            {"event": "discard", "reason": "peer_lost"},
            {"event": "heal", "bytes": 1, "seconds": 1.0},
            {"event": "orphaned"},
            {
                "event": "checkpoint",
                "status": "saved",
                "step": 1,
                "seconds": 1.0,
                "stall_seconds": 1.0,
                "free_bytes": 1,
            },
            {"event": "divergence"},
        ]
    )
    return metrics.registry


def _lighthouse() -> CollectorRegistry:
    metrics = Metrics()
    metrics.granted(running=1, participants=1, changed=True)
    metrics.waited(0.0)
    metrics.departed("left")
    metrics.run = "any"
    metrics.render(epoch=1, ages={"g0": 0.0})
    return metrics.registry


def _launcher() -> CollectorRegistry:
    metrics = LauncherMetrics(run="")
    metrics.restarted("g0", "exit 7", 1.0)
    metrics.noticed("sigterm")
    return metrics._registry


if __name__ == "__main__":
    print(table())
