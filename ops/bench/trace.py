"""Which group dies at which second? A pure function of seed, mean time between failures and wall time.

Every system that is compared lives through the same trace. One kill in each stretch of ``mtbf_s``, near its middle, so
that the rate is what was asked for; up to a tenth of the stretch earlier or later, so that kills do not keep time with
steps; whom it hits is drawn anew each time.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence

JITTER = 0.1
"""Of the time between failures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """All ranks of ``group`` get SIGKILL ``t`` seconds after the beginning."""

    t: float
    group: str


def failure_trace(*, seed: int, mtbf_s: float, wall_s: float, groups: Sequence[str]) -> tuple[Kill, ...]:
    """The kills, in time order."""
    rng = random.Random(f"{seed}/{mtbf_s:g}")
    found = []
    for stretch in range(int(wall_s / mtbf_s) + 1):
        t = (stretch + 0.5 + rng.uniform(-JITTER, JITTER)) * mtbf_s
        kill = Kill(t=t, group=rng.choice(list(groups)))
        if t < wall_s:
            found.append(kill)
    return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """A trace that was lived through: unix seconds of its beginning, its end and each kill, with whom it hit."""

    begin: float
    end: float
    kills: tuple[Kill, ...]


def play(
    trace: Sequence[Kill],
    *,
    wall_s: float,
    strike: Callable[[str], float],
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Played:
    """Kill as the trace says, from now on, and wait until the wall time is over. ``strike`` kills a group and says
    when."""
    begin = clock()
    kills = []
    for kill in trace:
        sleep(max(0.0, begin + kill.t - clock()))
        kills.append(Kill(t=strike(kill.group), group=kill.group))
    sleep(max(0.0, begin + wall_s - clock()))
    return Played(begin=begin, end=begin + wall_s, kills=tuple(kills))
