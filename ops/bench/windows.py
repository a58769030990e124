"""Which steps of the run of ``phalanx bench checkpoint`` are saved in which way, and which of them are measured?

Pure. The ranks save by this table (``save_windows``), the benchmark reads the event logs by it.
"""

from __future__ import annotations

WAYS = ("without", "with", "blocking")
"""Nothing is saved; in the background, as runs do; by torch's ``dcp.save`` while training waits."""
WINDOW = 8
"""Steps of one way in a row."""
CYCLE = WINDOW * len(WAYS)
"""Steps in which each way has one window. The first cycle is not measured: first saves make buffers, caches fill."""
STOCK = ".stock-"
"""How the names of the folders begin that ``dcp.save`` writes."""


def way_of(step: int) -> str:
    """How the state of ``step`` is saved. Each cycle begins with another way, so none always follows the same one."""
    window = step // WINDOW
    return WAYS[(window + window // len(WAYS)) % len(WAYS)]


def measured(step: int) -> bool:
    """Whether the time from the commit of ``step`` to the next one counts. The first of a window does not: the last
    save of the window before may still be running."""
    return step >= CYCLE and step % WINDOW > 0
