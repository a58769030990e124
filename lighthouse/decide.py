"""Whom to seat, on which state, and why? A pure function of the requests, the stored state, who lives, and the time.

The rules are those of the protocol model (tests/protocol_model.py) and bear its names: *fence*, *hold_lineage*,
*holder_stays*, *supersede*, *moved_on*, *end_recorded*, and that a living former participant is never left out. Beyond
the model stand the waits, each with a limit: the first quorum for the configured number of groups, a rollback for
everybody who may know better, a restarted gateway for those it remembers, a newcomer for its turn. Called by the
gateway at every change; no clock, no socket, no disk in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from configs.protocol import Claim, Kind, Member, Terms
from configs.words import SCRATCH, Lineage
from lighthouse.joins import Hold, held_back
from lighthouse.state import Participant, Stored, fenced


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A group that has asked completely: its claim, its torchft quorum request, and its Watch stream are there."""

    claim: Claim
    since: float
    """Seconds on the clock of ``Situation.now``."""

    @property
    def who(self) -> Participant:
        return Participant(self.claim.group, self.claim.incarnation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything a decision depends on. Times are seconds on one monotonic clock."""

    requests: tuple[Request, ...]
    stored: Stored
    living: frozenset[Participant]
    """Incarnations whose Watch stream is open."""
    terms: Terms
    engine: tuple[Participant, ...] | None
    """The membership of the running engine."""
    opened: float
    """When this gateway started to listen."""
    lost: float
    """When a former participant was last buried; ``opened`` if never."""
    now: float
    hold: Hold = dataclasses.field(default_factory=Hold)
    """Newcomers that wait."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do before the next change, or before ``until``."""

    reason: str
    until: float | None = None
    awaited: Participant | None = None
    """One who lives and without whose request, or death, the decision stays the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expire:
    """Former participants that were remembered over a restart and have not come back in time: bury them."""

    who: tuple[Participant, ...]
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """Too few groups for too long, or no state to start from: those who ask are refused with the reason, and leave."""

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """A quorum. Independent of the time, so that it can be decided again and compared after the engine has answered."""

    kind: Kind
    members: tuple[Member, ...]
    """In participant-rank order, which is torchft's: by replica id."""
    up_to_date: tuple[str, ...]
    current: Lineage
    restore: Lineage | None
    released: str | None
    """The group whose drain is granted; not among the members."""
    held: tuple[str, ...]
    """Newcomers that ask and are not seated yet."""
    rollback: str | None
    """Why the current lineage is neither the granted one nor the next on it; to be logged and fenced."""
    new_id: bool
    """The quorum gets an id, and an engine, of its own."""
    reason: str

    @property
    def participants(self) -> tuple[Participant, ...]:
        return tuple(Participant(member.group, member.incarnation) for member in self.members)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
    """These asked while somebody current was alive, and who was may have published since: let them look at their disks
    once more, for now the disk decides."""

    who: tuple[Participant, ...]


Decision = Wait | Expire | Lost | Again | Seat


def decide(case: Situation) -> Decision:
    """The next thing to do, with its reason."""
    if case.stored.ended is not None:
        return Wait(reason=f"the run ended at {case.stored.ended}")
    if not case.requests:
        return Wait(reason="nobody asks")
    missing = _former_participants_missing(case)
    if missing is not None:
        return missing
    requests = sorted(case.requests, key=lambda request: str(request.who))
    current, holders, restore = _current(requests, case.stored)
    if restore is not None and (stale := tuple(r.who for r in requests if r.since < case.lost)):
        return Again(who=stale)
    rollback = _rollback(current, case.stored, disputed=_disputed(requests))
    wait = _wait_for_more(case, current=current, restore=restore, rollback=rollback)
    if wait is not None:
        return wait
    if not holders:
        return Lost(reason="nobody brings the state that was asked for, and nobody may start from the seed")
    held = _held_back(case, requests, holders=holders, restore=restore)
    seated = [request for request in requests if request.who not in held]
    names = tuple(who.group for who in held)
    return _seat(case, seated, names, current=current, holders=holders, restore=restore, rollback=rollback)


def moved_on(claim: Claim, stored: Stored) -> bool:
    """Whether a request of a member of the last grant shows that its attempt is over (rule *moved_on*).

    True when the claim is anything but the commit of that attempt.
    """
    if Participant(claim.group, claim.incarnation) not in stored.known:
        return False
    return claim.void or claim.lineage != _granted_or_next(stored)[1]


def _former_participants_missing(case: Situation) -> Decision | None:
    """A former participant that lives is seated or buried, never left out."""
    asked = {request.who for request in case.requests}
    missing = [who for who in case.stored.known if not case.stored.buried(who) and who not in asked]
    absent = tuple(who for who in missing if who not in case.living)
    limit = case.opened + case.terms.start_wait_s
    if absent and case.now >= limit:
        return Expire(who=absent, reason=f"not back within {case.terms.start_wait_s:g} s of the lighthouse's start")
    if missing:
        names = ", ".join(map(str, missing))
        text = f"former participants have not asked: {names}"
        return Wait(reason=text, until=limit) if absent else Wait(reason=text, awaited=missing[-1])
    return None


def _current(requests: Sequence[Request], stored: Stored) -> tuple[Lineage, tuple[str, ...], Lineage | None]:
    """(the current lineage, the groups that hold it, the lineage to restore or None).

    A living run owns the history: disk is looked at only when no valid state asks. Whoever holds the granted lineage or
    the next on it comes first, so that nobody is rolled back while one of these asks; then the greatest step, most
    members, the greater quorum id. Lineages behind a fence are as good as void, and so are those in dispute.
    """
    claims: dict[Lineage, list[str]] = {}
    disputed = _disputed(requests)
    for request in requests:
        claim = request.claim
        if not claim.void and claim.lineage not in disputed and not fenced(claim.lineage, stored.fences):
            claims.setdefault(claim.lineage, []).append(claim.group)
    if claims:
        valid = [lineage for lineage in claims if lineage in _granted_or_next(stored)]
        current = max(valid or claims, key=lambda lineage: (lineage.step, len(claims[lineage]), lineage.quorum_id))
        return current, tuple(claims[current]), None
    found: dict[Lineage, list[str]] = {SCRATCH: [r.claim.group for r in requests if not r.claim.needs_state]}
    for request in requests:
        for lineage in dict.fromkeys(request.claim.disk):
            if lineage != SCRATCH and not fenced(lineage, stored.fences):
                found.setdefault(lineage, []).append(request.claim.group)
    restore = max(found)
    return restore, tuple(found[restore]), restore


def _disputed(requests: Sequence[Request]) -> frozenset[Lineage]:
    """Lineages of which the groups hold different states, and nobody can tell whose is right. One word is enough: who
    took part in that attempt and did not hear of it holds one of these states."""
    return frozenset(request.claim.lineage for request in requests if request.claim.disputed)


def _rollback(current: Lineage, stored: Stored, *, disputed: frozenset[Lineage]) -> str | None:
    """Rule *hold_lineage*: without a rollback only the granted lineage, or the last quorum's commit on it, passes."""
    if current in _granted_or_next(stored):
        return None
    if disputed:
        names = ", ".join(map(str, sorted(disputed)))
        return f"the groups differ at {names}, none has a majority; the last state that they agreed on is {current}"
    granted, following = _granted_or_next(stored)
    return f"nobody who asks holds {granted} or {following}; the best is {current}"


def _granted_or_next(stored: Stored) -> tuple[Lineage, Lineage]:
    """The end of the confirmed chain, and the commit of the last quorum on it."""
    return stored.granted, Lineage(stored.granted.step + 1, stored.last_quorum_id)


def _wait_for_more(
    case: Situation, *, current: Lineage, restore: Lineage | None, rollback: str | None
) -> Decision | None:
    """The waits with a limit: for enough groups, and, before disk or a rollback decides, for everybody known."""
    terms, asked = case.terms, len(case.requests)
    limit = max(min(request.since for request in case.requests), case.lost) + terms.start_wait_s
    in_time = case.now < limit
    if asked < terms.min_groups and not _ends(case, current):
        text = f"{asked} of at least {terms.min_groups} groups"
        return Wait(reason=text, until=limit) if in_time else Lost(reason=f"quorum lost: {text} ask")
    if not in_time:
        return None
    if restore is not None and asked < terms.groups:
        return Wait(reason=f"nobody current is alive; {asked} of {terms.groups} groups have come", until=limit)
    if rollback is not None:
        present = {request.claim.group for request in case.requests}
        away = sorted({who.group for who in case.stored.known} - present)
        if away or asked < terms.groups:
            return Wait(reason=f"held, it would be a rollback: {rollback}", until=limit)
    return None


def _held_back(
    case: Situation, requests: Sequence[Request], *, holders: tuple[str, ...], restore: Lineage | None
) -> dict[Participant, float]:
    """Newcomers that must heal, and must wait. Nobody waits while the state comes from disk, or while somebody wants to
    leave: the newcomer may be who holds the state after it."""
    if restore is not None or any(request.claim.drain for request in requests):
        return {}
    new = [r.who for r in requests if r.who not in case.stored.known and r.claim.group not in holders]
    others = len(requests) - len(new)
    return held_back(new, others=others, least=case.terms.min_groups, hold=case.hold, now=case.now)


def _ends(case: Situation, current: Lineage) -> bool:
    """Whether ``current`` is the state at the end of the run."""
    finished = any(r.claim.finished and not r.claim.void and r.claim.lineage == current for r in case.requests)
    return finished or current.step >= case.terms.steps > 0


def _seat(
    case: Situation,
    requests: Sequence[Request],
    held: tuple[str, ...],
    *,
    current: Lineage,
    holders: tuple[str, ...],
    restore: Lineage | None,
    rollback: str | None,
) -> Seat:
    kind, released = _kind(case, requests, current=current, holders=holders)
    members = tuple(
        Member(group=request.claim.group, incarnation=request.claim.incarnation, transfer=request.claim.transfer)
        for request in requests
        if request.claim.group != released
    )
    participants = tuple(Participant(member.group, member.incarnation) for member in members)
    why = _why_new_id(case, requests, participants, rollback)
    return Seat(
        kind=kind,
        members=members,
        up_to_date=tuple(group for group in holders if group != released),
        current=current,
        restore=restore,
        released=released,
        held=held,
        rollback=rollback,
        new_id=why is not None,
        reason=_reason(current, holders, restore, why, held),
    )


def _kind(
    case: Situation, requests: Sequence[Request], *, current: Lineage, holders: tuple[str, ...]
) -> tuple[Kind, str | None]:
    """(what the quorum is for, the group whose drain it grants). Drains go one at a time; the last holder stays, and
    the last group saves before it leaves (rule *holder_stays*)."""
    if _ends(case, current):
        return Kind.CLOSING, None
    draining = next((request.claim.group for request in requests if request.claim.drain), None)
    if draining is None:
        return Kind.TRAIN, None
    if len(requests) == 1:
        return (Kind.LEAVE if draining in holders else Kind.TRAIN), None
    return Kind.TRAIN, draining if any(holder != draining for holder in holders) else None


def _why_new_id(
    case: Situation, requests: Sequence[Request], participants: tuple[Participant, ...], rollback: str | None
) -> str | None:
    if case.engine != participants:
        return "the members changed" if case.engine else "a first quorum"
    if rollback is not None:
        return "a rollback"
    fresh = [request.claim.group for request in requests if request.claim.fresh]
    return f"{', '.join(fresh)} asked for a fresh one" if fresh else None


def _reason(
    current: Lineage,
    holders: tuple[str, ...],
    restore: Lineage | None,
    why_new_id: str | None,
    held: tuple[str, ...],
) -> str:
    source = "held" if restore is None else "to be made from the seed" if restore == SCRATCH else "on the disk seen"
    text = f"{current} is current, {source} by {', '.join(holders)}"
    text += f"; new quorum id: {why_new_id}" if why_new_id else ""
    return f"{text}; held back: {', '.join(held)}" if held else text
