"""How does each group keep to its own share of the cores, so that what a dead group leaves idle is lost to all?

Whatever a thread starts inherits the cores that the thread may use. So a group's agent (a launcher, a torchrun) is
started from a thread that is on the group's cores for that moment: the group, its threads and all its successors are
pinned from birth, and nothing has to look for them. Where one agent starts the ranks of all groups, each rank goes
through ``python -m ops.bench.pin`` first, which pins before anything is imported; it also ties the rank to its agent.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from configs.lifetime import die_with_parent

Cores = frozenset[int]
Shares = Mapping[str, Cores]
"""The cores of each group."""

ANY = "-"
"""On a command line: wherever the system likes."""


def equal_shares(cores: Sequence[int], groups: Sequence[str]) -> dict[str, Cores]:
    """As many whole cores for every group; what is left over is nobody's. Raises ValueError with fewer cores than
    groups: then there are no equal shares."""
    each = len(cores) // len(groups)
    if not each:
        raise ValueError(f"{len(groups)} groups cannot each have a core of their own: there are {len(cores)}")
    ordered = sorted(cores)
    return {group: frozenset(ordered[i * each : (i + 1) * each]) for i, group in enumerate(groups)}


@contextlib.contextmanager
def on_cores(cores: Cores | None) -> Iterator[None]:
    """What the calling thread starts while inside keeps to ``cores``; None changes nothing."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def strays(pids: Sequence[int], cores: Cores) -> list[tuple[int, int]]:
    """(process, thread) of every thread that may run elsewhere than on ``cores``; what is gone is passed over."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    if not os.sched_getaffinity(int(task.name)) <= cores:
                        found.append((pid, int(task.name)))
    return found


def words_of(shares: Shares | None, groups: Sequence[str]) -> str:
    """The shares as one word of a command line, in the order of the groups."""
    if shares is None:
        return ANY
    return "/".join(",".join(map(str, sorted(shares[group]))) for group in groups)


def cores_of(words: str, place: int) -> Cores | None:
    """Inverse of ``words_of`` for the group at ``place``."""
    return None if words == ANY else frozenset(int(core) for core in words.split("/")[place].split(","))


def main() -> None:
    """``python -m ops.bench.pin SHARES RANKS_PER_GROUP MODULE ARGS...``: a rank of a torchrun."""
    die_with_parent()
    if os.getppid() == 1:  # the agent ended before the kernel was asked
        return
    shares, ranks, module, *arguments = sys.argv[1:]
    cores = cores_of(shares, int(os.environ["LOCAL_RANK"]) // int(ranks))
    if cores is not None:
        os.sched_setaffinity(0, cores)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
