"""Where did every second of every group go, from the run's start to its end?

Pure, over the event logs. A group's time is cut, without gap or overlap, into spans that belong to one phase each, so
its phases sum to the wall time whatever the logs say (asserted). Rank 0 speaks for its group. The rules:

- *gone*: no process of the group is there. From a launch to a group's first process it is *starting*.
- *starting* and *rehearse* end with the ``start`` event.
- An attempt that was kept has the phases that its commit record tells; time between the records that none of them
  covers is *other*, and records that tell of more than there was are scaled.
- An attempt that was discarded, orphaned or rolled back, or died with its group, is *discarded* from its quorum on.
- *waiting*: the part of asking for a quorum in which the group waited for others to ask, or for more than a quorum of
  this run usually takes (for groups to come, for a lighthouse that is away). The rest of asking is *quorum*.
- *heal* has restores from disk too. *draining* is what follows the closing quorum.
- An attempt that is under way where the log ends is *other*.

Clocks of several hosts were made one before (clocks.py). Read by report.py and the drawings.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from configs.run_folder import Event
from configs.words import Lineage
from ops.history import Indexed, Logs, confirmed_chain, lineage_of, time_of
from ops.lives import Ending, Life, launches_of, lives_of
from trainer.phases import OUTSIDE, Phase

GONE = "gone"
PHASES = (*(phase.value for phase in Phase), GONE)
"""Every second has one of these."""
WORK = (Phase.DATA, Phase.COMPUTE, Phase.REDUCE, Phase.VOTE, Phase.OPTIMIZER)
"""The phases of attempts that were kept in which training gets on; everything else is a loss."""
_THERE = tuple(phase for phase in PHASES if phase != GONE)
_BUILDING = set(OUTSIDE) - {Phase.CHECKPOINT_STALL}
_ORDER = tuple(
    phase.value
    for phase in (Phase.CHECKPOINT_STALL, Phase.OTHER, Phase.VALIDATION, Phase.WAITING, Phase.QUORUM, Phase.HEAL)
) + tuple(phase.value for phase in (*WORK, Phase.DISCARDED, Phase.DRAINING))
"""How the phases of one record follow one another."""


class Span(NamedTuple):
    """Seconds since the run's start."""

    begin: float
    end: float
    phase: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput:
    """The time of a run, by group: contiguous spans from 0 to ``wall_s``."""

    began: float
    """Unix seconds."""
    wall_s: float
    spans: Mapping[str, Sequence[Span]]
    running: bool
    """The logs do not tell its end: it is going on, or nobody was left to tell."""

    @functools.cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """By group and phase; phases without time are left out. Each group's sum is the wall time."""
        sums = {group: _sums(spans) for group, spans in self.spans.items()}
        for group, phases in sums.items():
            total = math.fsum(phases.values())
            assert abs(total - self.wall_s) <= 1e-6 * (1 + self.wall_s), f"{group}: {total} s of {self.wall_s} s"
            assert min(phases.values(), default=0.0) >= 0.0, f"{group}: {phases}"
        return sums

    @functools.cached_property
    def total(self) -> dict[str, float]:
        """Group-seconds by phase, of all groups."""
        every = self.seconds.values()
        return {p: s for p in PHASES if (s := math.fsum(phases.get(p, 0.0) for phases in every)) > 0}

    @property
    def effective_training_time_ratio(self) -> float | None:
        """The part of all group-seconds that was work on attempts that were kept."""
        return self._part(WORK, of=PHASES)

    @property
    def scheduling_ratio(self) -> float | None:
        """The part of all group-seconds in which the group's processes were there."""
        return self._part(_THERE, of=PHASES)

    @property
    def runtime_ratio(self) -> float | None:
        """The part of these that was work on attempts that were kept."""
        return self._part(WORK, of=_THERE)

    def _part(self, phases: Iterable[str], *, of: Iterable[str]) -> float | None:
        total = self.total
        everything = math.fsum(total.get(phase, 0.0) for phase in of)
        return math.fsum(total.get(phase, 0.0) for phase in phases) / everything if everything else None


def read_goodput(logs: Logs, *, since: float = 0.0, groups: Iterable[str] = ()) -> Goodput:
    """The time of a run, or of what a launch that began at ``since`` (unix seconds) added to it. ``groups``: those that
    should have come, beside those that did. Logs on one clock."""
    logs = Indexed.of_logs(logs)
    times = [t for events in logs.by_writer.values() for e in events if (t := _earliest(e)) >= since]
    began, end = max(min(times, default=0.0), since), max(times, default=0.0)
    end = max(began, end)
    case = _Case(logs)
    names = dict.fromkeys((*logs.groups, *groups))
    cut = {group: _spans(logs, group, case, end=end) for group in names}
    return Goodput(
        began=began,
        wall_s=end - began,
        spans={group: _window(spans, began, end) for group, spans in cut.items()},
        running=_running(logs, end),
    )


class _Case:
    """What one group's time cannot be told from its own log: which attempts were kept, how long others asked."""

    def __init__(self, logs: Logs) -> None:
        self._judged = bool(logs.of("lighthouse", "quorum", "confirmed"))
        self._orphaned = {lineage_of(e) for _, e in logs.of_groups("orphaned")}
        self._kept = _kept(logs, self._orphaned)
        least: dict[object, float] = {}
        for _, event in logs.of_groups("quorum"):
            asked = float(event.get("seconds") or 0.0)
            least[event.get("attempt")] = min(least.get(event.get("attempt"), asked), asked)
        self._least = least
        self._usual = statistics.median(least.values()) if least else 0.0

    def kept(self, commit: Event) -> bool:
        lineage = lineage_of(commit)
        return lineage in self._kept if self._judged else lineage not in self._orphaned

    def waited(self, quorum: Event) -> float:
        """Seconds of asking in which there was nothing to do but wait."""
        asked = float(quorum.get("seconds") or 0.0)
        return max(0.0, asked - min(self._least.get(quorum.get("attempt"), asked), self._usual))


def _kept(logs: Logs, orphaned: set[Lineage | None]) -> set[Lineage | None]:
    """The confirmed history, and the newest commits, which a later quorum may still confirm."""
    chain = confirmed_chain(logs.of("lighthouse"))
    fenced = max((time_of(e) for e in logs.of("lighthouse", "rollback")), default=0.0)
    hopeful = {
        lineage_of(e)
        for _, e in logs.of_groups("commit")
        if e.get("step") == chain.end.step + 1 and time_of(e) >= fenced
    }
    return {*chain.lineages, *(hopeful - orphaned)}


# ---- one group -----------------------------------------------------------------------------------------------------


class _Cutter:
    """Cuts a group's time from the front: whatever is put to it, the pieces are contiguous and none is negative."""

    def __init__(self, began: float) -> None:
        self.at = began
        self.spans: list[Span] = []

    def until(self, moment: float, phase: str) -> None:
        """From where we are to ``moment``; nothing where that has passed."""
        if moment > self.at:
            self.spans.append(Span(self.at, moment, phase))
            self.at = moment

    def pieces(self, moment: float, phases: Mapping[str, float]) -> None:
        """From where we are to ``moment`` in the phases told; what they leave is other, what is too much is scaled."""
        room = moment - self.at
        told = math.fsum(phases.values())
        if room <= 0 or told <= 0:
            self.until(moment, Phase.OTHER)
            return
        scale = min(1.0, room / told)
        rest = dict(phases)
        rest[Phase.OTHER.value] = rest.get(Phase.OTHER, 0.0) + max(0.0, room - told)
        for phase in _ORDER:
            self.until(min(self.at + rest.pop(phase, 0.0) * scale, moment), phase)
        for seconds in rest.values():
            self.until(min(self.at + seconds * scale, moment), Phase.OTHER)
        self.until(moment, self.spans[-1].phase if self.spans else Phase.OTHER)  # what rounding left


def _spans(logs: Logs, group: str, case: _Case, *, end: float) -> list[Span]:
    lives = lives_of(logs, group, until=end)
    told = launches_of(logs, group) if logs.of("launcher", "launch") else logs.of("launcher", "lighthouse")[:1]
    launches = [time_of(e) for e in told]
    begins = [time_of(e) for events in logs.by_writer.values() for e in events[:1]]
    cutter = _Cutter(min([end, *begins, *(life.began for life in lives)]))
    for life in lives:
        since = max((t for t in launches if t <= life.began), default=None)
        if since is not None and since >= cutter.at:  # its first since then
            cutter.until(since, GONE)
            cutter.until(life.began, Phase.STARTING)
        cutter.until(life.began, GONE)
        _cut_life(cutter, life, case)
    cutter.until(end, GONE)
    return cutter.spans


def _cut_life(cutter: _Cutter, life: Life, case: _Case) -> None:
    if life.ready is None:
        cutter.until(life.end, Phase.STARTING)
        return
    cutter.until(life.ready - life.rehearsed_s, Phase.STARTING)
    cutter.until(life.ready, Phase.REHEARSE)
    quorum: Event = {}
    restored = 0.0
    for event in life.events:
        match event.get("event"):
            case "quorum":
                quorum, restored = event, 0.0
            case "restore":
                restored = float(event.get("seconds") or 0.0)
            case "commit" | "discard":
                phases = _phases_of(event, quorum=quorum, restored=restored, case=case)
                cutter.pieces(min(time_of(event), life.end), phases)
                quorum = {}
    _cut_rest(cutter, life, quorum, case)


def _phases_of(event: Event, *, quorum: Event, restored: float, case: _Case) -> dict[str, float]:
    """The phases of one attempt's record, as the ledger sees them."""
    told = {name: float(s) for name, s in (event.get("phases") or {}).items() if name not in _BUILDING}
    waited = case.waited(quorum)
    if event.get("event") == "commit" and case.kept(event):
        asking = told.pop(Phase.QUORUM, 0.0)
        waited, restored = min(waited, asking), min(restored, max(0.0, asking - waited))
        moved = {Phase.WAITING: waited, Phase.HEAL: told.pop(Phase.HEAL, 0.0) + restored}
        return {**told, Phase.QUORUM: asking - waited - restored, **moved}
    stall = told.pop(Phase.CHECKPOINT_STALL, 0.0)
    lost = math.fsum(told.values())
    waited = min(waited, lost)
    return {Phase.CHECKPOINT_STALL: stall, Phase.WAITING: waited, Phase.DISCARDED: lost - waited}


def _cut_rest(cutter: _Cutter, life: Life, quorum: Event, case: _Case) -> None:
    """What follows a life's last record: a closing quorum, or an attempt without an outcome, or a wait for one."""
    if quorum:
        asked, granted = float(quorum.get("seconds") or 0.0), min(time_of(quorum), life.end)
        waited = case.waited(quorum)
        closing = life.ending is Ending.ORDERLY
        cutter.until(granted - asked, Phase.OTHER)
        cutter.until(granted - (asked - waited), Phase.WAITING)
        cutter.until(granted, Phase.DISCARDED if life.ending is Ending.FAILED else Phase.QUORUM)
        rest = {Ending.FAILED: Phase.DISCARDED, Ending.OPEN: Phase.OTHER}
        cutter.until(life.end, Phase.DRAINING if closing else rest[life.ending])
    else:
        cutter.until(life.end, Phase.DRAINING if life.ending is Ending.ORDERLY else Phase.WAITING)


# ---- the whole -----------------------------------------------------------------------------------------------------


def _window(spans: Sequence[Span], began: float, end: float) -> tuple[Span, ...]:
    """The spans between two moments, from 0; what they do not reach is gone."""
    cutter = _Cutter(began)
    for span in spans:
        if span.begin > cutter.at:
            cutter.until(min(span.begin, end), GONE)
        cutter.until(min(span.end, end), span.phase)
    cutter.until(end, GONE)
    return tuple(Span(a - began, b - began, phase) for a, b, phase in cutter.spans)


def _earliest(event: Event) -> float:
    """The first moment that an event tells of: a start tells of its process's beginning."""
    return min(time_of(event), float(event.get("began_t", time_of(event))))


def _sums(spans: Iterable[Span]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for begin, end, phase in spans:
        sums.setdefault(phase, []).append(end - begin)
    return {phase: math.fsum(sums[phase]) for phase in PHASES if phase in sums}


def _running(logs: Logs, end: float) -> bool:
    over = [time_of(e) for e in logs.of("launcher", "exit") if not e.get("group")]
    over += [time_of(e) for e in logs.of("lighthouse", "end")]
    later = [time_of(e) for _, e in logs.of_groups("quorum", "commit") if time_of(e) > max(over, default=0.0)]
    lives = [lives[-1] for group in logs.groups if (lives := lives_of(logs, group, until=end))]
    return bool(later or not over) and any(life.ending is Ending.OPEN for life in lives)
