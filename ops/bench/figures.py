"""How are measured values told? Spreads, percentiles, ratios, and the machine they were taken on.

Called by every benchmark; a figure of which nothing was measured is None, never 0.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "torchft", "grpcio")


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Median, least, greatest and number of the values."""
    if not values:
        return None
    return {"median": percentile(values, 50), "min": min(values), "max": max(values), "n": len(values)}


def tail(values: Sequence[float]) -> dict[str, Any] | None:
    """The 50th and the 99th percentile, and of how many."""
    if not values:
        return None
    return {"p50": percentile(values, 50), "p99": percentile(values, 99), "n": len(values)}


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between neighbours; of an even number of values the median is the mean of the middle two."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (at - low))


def ratio(reference: dict[str, Any] | None, ours: dict[str, Any] | None) -> float | None:
    """Median of the reference over our median."""
    if reference is None or ours is None or ours["median"] <= 0:
        return None
    return float(reference["median"] / ours["median"])


def spread_text(found: dict[str, Any] | None) -> str:
    """A spread for people, in the unit of its values."""
    if found is None:
        return "not measured"
    return f"median {found['median']:.3f}, {found['min']:.3f} to {found['max']:.3f} (n = {found['n']})"


def machine() -> dict[str, Any]:
    """What the figures were taken on, and how busy it was."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
        "load_1m": os.getloadavg()[0],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
