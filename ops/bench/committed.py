"""How much work remains of what a system did under failures? Pure functions over its event logs.

A step counts when it is in the final history: what was rolled back to a checkpoint, or never confirmed, does not. A
step counts all positions of its batch, so that systems that train on the same batches are counted alike. The *ceiling*
is what the capacity allows that the trace leaves: the share of a group is gone from its death until it commits a share
of its own again.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from ops.bench.figures import spread
from ops.bench.trace import Kill, Played
from ops.history import Logs, commits_by_lineage, confirmed_chain, time_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """One commit. ``maker`` tells apart two that made the same step in two histories; ``t`` in unix seconds."""

    t: float
    step: int
    maker: Hashable
    tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """A commit in which a group had a share of its own, and which life of the group that was."""

    t: float
    life: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outage:
    """A group is gone from ``begin`` until ``back``; None when the trace ended before."""

    group: str
    begin: float
    back: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lived:
    """What one system did: a calm stretch (unix seconds), then the trace."""

    calm: tuple[float, float]
    played: Played
    history: Sequence[Made]
    """The final one."""
    rolled_back: int
    """Commits that are not part of it."""
    shares: Mapping[str, Sequence[Share]]


# ---- what each system's logs say -------------------------------------------------------------------------------------


def our_history(logs: Logs, *, seq_len: int) -> tuple[list[Made], int]:
    """(the confirmed history, how many steps were rolled back) of a run of ours."""
    chain = confirmed_chain(logs.of("lighthouse"))
    records = commits_by_lineage(logs)
    found = []
    for lineage in chain.lineages:
        said = [event for _, event in records.get(lineage, ())]
        if said:
            t = min(time_of(event) for event in said)
            tokens = int(said[0].get("samples") or 0) * seq_len
            found.append(Made(t=t, step=lineage.step, maker=lineage.quorum_id, tokens=tokens))
    return found, len(chain.rolled_back)


def told_history(logs: Logs) -> tuple[list[Made], int]:
    """(the final history, how many steps were rolled back) of a baseline, which confirms nothing: what a later commit
    of the same or an earlier step has not undone."""
    made = [
        Made(t=time_of(e), step=int(e["step"]), maker=e.get("maker"), tokens=int(e["step_tokens"]))
        for _, e in logs.of_groups("commit")
    ]
    final = final_history(made)
    return final, len({(one.step, one.maker) for one in made}) - len(final)


def final_history(made: Iterable[Made]) -> list[Made]:
    """What remains, in step order. Groups that tell of the same commit count once."""
    first: dict[tuple[int, Hashable], Made] = {}
    for one in sorted(made, key=lambda one: one.t):
        first.setdefault((one.step, one.maker), one)
    found: list[Made] = []
    for one in reversed(first.values()):
        if not found or one.step < found[-1].step:
            found.append(one)
    return found[::-1]


def shares_of(logs: Logs, group: str, *, writer: str | None = None) -> list[Share]:
    """When a group committed shares of its own, by its own log or another ``writer``'s."""
    return [
        Share(t=time_of(e), life=int(e.get("incarnation") or 0))
        for e in logs.of(writer or group, "commit")
        if (e.get("shares") or {}).get(group)
    ]


# ---- what it comes to ------------------------------------------------------------------------------------------------


def calm_rate(history: Sequence[Made], begin: float, end: float) -> float:
    """Tokens per second from the first to the last commit of a stretch; 0 with fewer than two."""
    inside = [one for one in history if begin <= one.t <= end]
    if len(inside) < 2:
        return 0.0
    return sum(one.tokens for one in inside[1:]) / (inside[-1].t - inside[0].t)


def committed_rate(history: Sequence[Made], played: Played) -> float:
    """Tokens per second of the steps committed while the trace was played."""
    inside = [one for one in history if played.begin < one.t <= played.end]
    return sum(one.tokens for one in inside) / (played.end - played.begin)


def outages(kills: Sequence[Kill], shares: Mapping[str, Sequence[Share]]) -> list[Outage]:
    """When which group was gone. A kill of a group that is not back yet prolongs its outage."""
    found: list[Outage] = []
    for group in sorted({kill.group for kill in kills}):
        back: float | None = 0.0
        for kill in (kill for kill in kills if kill.group == group):
            if back is None or kill.t < back:
                continue
            own = shares.get(group, ())
            old = max((share.life for share in own if share.t <= kill.t), default=-1)
            back = next((share.t for share in own if share.t > kill.t and share.life > old), None)
            found.append(Outage(group=group, begin=kill.t, back=back))
    return sorted(found, key=lambda outage: outage.begin)


def ceiling(gone: Sequence[Outage], *, groups: int, played: Played) -> float:
    """The share of the capacity that the outages leave."""
    return 1.0 - _lost_capacity(gone, groups=groups, played=played) / (played.end - played.begin)


def losses(lived: Lived, gone: Sequence[Outage], *, ratio: float) -> dict[str, float]:
    """Where the seconds of the trace went that are missing from the committed ratio, each in seconds of all groups:
    *capacity* of groups that were gone; *in_flight*, since the last commit when a group was killed; *rest*: waiting for
    each other, healing, work that was rolled back, slower steps."""
    played = lived.played
    total = (1.0 - ratio) * (played.end - played.begin)
    capacity = _lost_capacity(gone, groups=len(lived.shares), played=played)
    commits = [one.t for one in lived.history]
    in_flight = 0.0
    for kill in played.kills:
        before = bisect.bisect_right(commits, kill.t)
        if before and any(one.begin == kill.t for one in gone):
            in_flight += kill.t - commits[before - 1]
    return {"capacity": capacity, "in_flight": in_flight, "rest": total - capacity - in_flight}


def save_interval(*, save_s: float, mtbf_s: float, step_s: float) -> int:
    """Steps between blocking saves: about the optimum of Young (1974), sqrt(2 x save x MTBF) seconds."""
    return max(1, round(math.sqrt(2 * save_s * mtbf_s) / step_s))


def figures(lived: Lived, *, native_rate: float) -> dict[str, Any]:
    """What ``bench chaos`` says of one system; ratios are None where nothing was committed to compare with."""
    played, gone = lived.played, outages(lived.played.kills, lived.shares)
    rate, calm = committed_rate(lived.history, played), calm_rate(lived.history, *lived.calm)
    steps = [one for one in lived.history if played.begin < one.t <= played.end]
    ratio = _over(rate, calm)
    return {
        "committed_ratio": ratio,
        "native_ratio": _over(rate, native_rate),
        "ceiling_ratio": ceiling(gone, groups=len(lived.shares), played=played),
        "tokens_per_s": rate,
        "calm_tokens_per_s": calm,
        "steps": len(steps),
        "rolled_back_steps": lived.rolled_back,
        "kills": len(played.kills),
        "recovery_s": spread([one.back - one.begin for one in gone if one.back is not None]),
        "lost_s": None if ratio is None else losses(lived, gone, ratio=ratio),
        "never_back": sum(one.back is None for one in gone),
    }


def _lost_capacity(gone: Sequence[Outage], *, groups: int, played: Played) -> float:
    """Seconds of all groups."""
    end = played.end
    return sum(min(one.back if one.back is not None else end, end) - one.begin for one in gone) / groups


def _over(rate: float, reference: float) -> float | None:
    return rate / reference if reference > 0 else None
