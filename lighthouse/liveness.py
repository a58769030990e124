"""Who is silent, who is stuck, and who only looks so? A pure function of the pulses, the last grant and the time.

A closed stream is a death and needs no judging. What is left are hosts that fall silent without closing anything and
processes that hang while their connections stay open. A group is buried when nothing was heard of it, or of one of its
ranks, for ``failure_detection_s``; or when one of its ranks is behind a phase in which another participant has waited
longer than the limit of this incarnation's own times; or when its heal keeps others waiting for longer than a heal may
take, however steadily the bytes arrive. Where everybody waits for everybody (the path between groups is
cut) the attempt is ended; after two attempts that failed with all alive the youngest is buried. Never the last holder
of the current lineage. Called by the gateway many times within ``failure_detection_s``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from configs.protocol import Pulse
from configs.words import DepartureCause
from lighthouse.state import Participant

WAITING = frozenset({"reduce", "quorum"})
"""Phases in which a rank can do nothing but wait for the other groups: for their gradients, or for them to ask."""
AWAITED = frozenset({"data", "compute", "other", "checkpoint_stall", "optimizer", "vote"})
"""Phases that others wait for. A heal is not among them: it has a limit of its own."""
_HEALING = "heal"
_ASKING = "quorum"
"""Who is in it and has not asked connects to its peers, or is what those who have asked wait for."""
FAILED_ATTEMPTS = 2
_USUAL_TIMES = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heard:
    """The last pulse of an incarnation that lives."""

    who: Participant
    pulse: Pulse
    at: float
    """When it came, on the clock of ``Case.now``."""
    joined: float
    """When the incarnation did."""
    asks: bool = False
    """Its request for the next quorum is here."""
    stale: bool = False
    """Its pulse is older than a time in which this process could hear nobody: it says nothing of what it does now."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Everything a judgement depends on."""

    heard: tuple[Heard, ...]
    members: tuple[Participant, ...]
    """Of the last grant."""
    holders: tuple[str, ...]
    """Groups that held the current lineage in it."""
    attempt: int
    over: bool
    """The last grant's attempt is known to be over."""
    failures: int
    """Attempts of the same members in a row that came to nothing, before the running one."""
    detection_s: float
    first_step_s: float
    now: float
    heal_s: float = float("inf")
    """How long a heal may keep others waiting."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Bury ``who``; without ``who``, end the attempt for all."""

    who: Participant | None
    cause: DepartureCause
    reason: str


def judge(case: Case) -> list[Verdict]:
    """What must be done now, with reasons. Empty nearly always."""
    found = [*_silent(case), *_behind(case), *_slow_heals(case)]
    if not found:
        found = [*_cut(case), *_failing(case)]
    if not found:
        return []
    holders = {heard.who for heard in _inside(case) if heard.who.group in case.holders}
    kept: list[Verdict] = []
    for verdict in found:
        if verdict.who in {v.who for v in kept}:
            continue
        if verdict.who is not None and verdict.who in holders:
            if len(holders) == 1:
                continue  # the last one that holds the current lineage is waited for
            holders.discard(verdict.who)
        kept.append(verdict)
    return kept


def _silent(case: Case) -> Iterable[Verdict]:
    for heard in case.heard:
        gap = case.now - heard.at
        if gap > case.detection_s:
            yield Verdict(who=heard.who, cause=DepartureCause.EXPIRED, reason=f"silent for {gap:.1f} s")
            continue
        for rank, pulse in enumerate(heard.pulse.ranks):
            if pulse.silent_s + gap > case.detection_s:
                reason = f"rank {rank} silent for {pulse.silent_s + gap:.1f} s in {pulse.phase}"
                yield Verdict(who=heard.who, cause=DepartureCause.HUNG, reason=reason)
                break


def _behind(case: Case) -> Iterable[Verdict]:
    """Linear in the groups: of the others' waits only the longest counts, and it is one of the two longest of all."""
    inside = _behaving(case)
    waits = {heard.who: wait for heard in inside if (wait := _waited(heard, case)) is not None}
    longest = _two_longest(waits)
    asking = _two_longest({heard.who: waits[heard.who] for heard in inside if heard.asks and heard.who in waits})
    for heard in inside:
        limit = _limit(heard, case)
        waited = _longest_of_others(longest, heard.who)
        if waited <= limit:
            continue
        asked_for = not heard.asks and _longest_of_others(asking, heard.who) > limit
        awaited = AWAITED | ({_ASKING} if asked_for else set())
        for rank, pulse in enumerate(heard.pulse.ranks):
            if pulse.attempt < case.attempt or (pulse.attempt == case.attempt and pulse.phase in awaited):
                reason = f"rank {rank} in {pulse.phase} while others have waited {waited:.1f} s for it"
                yield Verdict(who=heard.who, cause=DepartureCause.HUNG, reason=reason)
                break


def _slow_heals(case: Case) -> Iterable[Verdict]:
    inside = _behaving(case)
    if all(_waited(heard, case) is None for heard in inside):
        return
    for heard in inside:  # a healer is not among those who wait
        gap = case.now - heard.at
        for rank, pulse in enumerate(heard.pulse.ranks):
            healed = pulse.age_s + gap
            if pulse.attempt == case.attempt and pulse.phase == _HEALING and healed > case.heal_s:
                reason = f"rank {rank} has healed for {healed:.1f} s, more than {case.heal_s:g} s"
                yield Verdict(who=heard.who, cause=DepartureCause.HUNG, reason=reason)
                break


def _two_longest(waits: Mapping[Participant, float]) -> list[tuple[float, Participant]]:
    return sorted(((wait, who) for who, wait in waits.items()), reverse=True)[:2]


def _longest_of_others(longest: list[tuple[float, Participant]], who: Participant) -> float:
    return next((wait for wait, other in longest if other != who), 0.0)


def _cut(case: Case) -> Iterable[Verdict]:
    """Nobody is behind and nobody gets on: the path between the groups is cut."""
    inside = _behaving(case)
    waits = [_waited(heard, case) for heard in inside]
    if case.over or len(inside) < 2 or len(inside) < len(case.members):
        return
    known = [wait for wait in waits if wait is not None]
    if len(known) == len(waits) and min(known) > max(_limit(heard, case) for heard in inside):
        reason = f"all participants have waited {min(known):.1f} s for each other"
        yield Verdict(who=None, cause=DepartureCause.HUNG, reason=reason)


def _failing(case: Case) -> Iterable[Verdict]:
    inside = _inside(case)
    if case.failures >= FAILED_ATTEMPTS and len(inside) > 1:
        youngest = max(inside, key=lambda heard: (heard.joined, heard.who))
        reason = f"{case.failures} attempts failed with all alive, and it is the youngest"
        yield Verdict(who=youngest.who, cause=DepartureCause.HUNG, reason=reason)


def _inside(case: Case) -> list[Heard]:
    """The participants of the last grant that live."""
    members = frozenset(case.members)
    return [heard for heard in case.heard if heard.who in members]


def _behaving(case: Case) -> list[Heard]:
    """Those of them of whom it is known what they do."""
    return [heard for heard in _inside(case) if not heard.stale]


def _waited(heard: Heard, case: Case) -> float | None:
    """For how long all ranks of this participant have waited for others in the last grant's attempt, if they do."""
    ranks = heard.pulse.ranks
    if not ranks or any(r.attempt != case.attempt or r.phase not in WAITING for r in ranks):
        return None
    return min(r.age_s for r in ranks) + case.now - heard.at


def _limit(heard: Heard, case: Case) -> float:
    """How long others may wait for this incarnation: twice its own longest recent attempt; before its first, the
    first step's limit (a compile must not look like a hang)."""
    usual = heard.pulse.usual_s
    return case.first_step_s if usual is None else max(case.detection_s, _USUAL_TIMES * usual)
