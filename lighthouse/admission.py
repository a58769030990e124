"""Who belongs to the run? The rules by which a group is let in, or turned away with everything that is wrong with it.

Twice: when it joins (run, config, versions: known before anything is built) and, by its voucher, before it first asks
(token store, golden digest: known only after the rehearsal). It is compared with what the groups that are here have
brought; the first one sets the measure. Where gradients are summed exactly everything must be equal, because else the
bits of the weights would differ in silence. With fp32 sums other machines are welcome: then instruction set, threads
and golden digest are not compared, config, token store and library versions are. Pure; called by the gateway.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping

from configs.protocol import Terms, Voucher
from lighthouse.state import Participant, Stored
from lighthouse.waiting import Refused

_GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SAME = ("run", "config_digest", "steps")
_POSITIVE = ("groups", "min_groups", "start_wait_s", "failure_detection_s", "first_step_limit_s")
_ABSENT = "nothing"


@dataclasses.dataclass(frozen=True)
class Later:
    """It cannot be said yet: ask again."""

    reason: str


def judge_join(
    terms: Terms, group: str, *, stored: Stored, living: Collection[Participant], settling: bool
) -> Refused | Later | None:
    """Whether a group with these terms may join.

    ``settling``: the lighthouse has only just come back. Until then groups that it remembers may return any moment, and
    a run must not be taken over while it is away.
    """
    if not _GROUP_NAME.fullmatch(group):
        return Refused(f"group name {group!r}: letters, digits, '_', '.' and '-' only, 64 at most")
    absurd = [name for name in _POSITIVE if not 0 < getattr(terms, name) < math.inf]
    if absurd:
        return Refused("; ".join(f"{name} is {getattr(terms, name)!r}, no positive number" for name in absurd))
    if stored.terms is None:
        return None
    differing = "; ".join(_differing_terms(terms, stored.terms))
    if not differing:
        return None
    if living:
        return Refused(f"{_names(living)} trained here with other terms than {group}: {differing}")
    remembered = [who for who in map(Participant._make, stored.incarnations.items()) if not stored.buried(who)]
    if settling and remembered and stored.ended is None:
        return Later(f"{differing}; {_names(remembered)} may still come back")
    return None


def judge_voucher(who: Participant, voucher: Voucher, *, stored: Stored) -> Refused | None:
    """Whether an admitted incarnation has the data, and computes the bits, of the others."""
    differing = "; ".join(_differing_vouchers(who, voucher, stored))
    return Refused(f"{who.group} does not compute what the others do: {differing}") if differing else None


def _differing_terms(mine: Terms, theirs: Terms) -> Iterator[str]:
    for name in _SAME:
        if getattr(mine, name) != getattr(theirs, name):
            yield f"{name} is {getattr(mine, name)!r}, not {getattr(theirs, name)!r}"
    yield from _differing_items(mine.software, theirs.software)
    if mine.exact or theirs.exact:
        yield from _differing_items(mine.machine, theirs.machine)


def _differing_items(mine: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            yield f"{name} is {mine.get(name, _ABSENT)}, not {theirs.get(name, _ABSENT)}"


def _differing_vouchers(who: Participant, voucher: Voucher, stored: Stored) -> Iterator[str]:
    others = {
        group: brought
        for group, brought in stored.vouched.items()
        if group != who.group
        and brought.incarnation == stored.incarnations.get(group)
        and not stored.buried(Participant(group, brought.incarnation))
    }
    what = {"store": "token store", "golden": "golden digest"}
    if stored.terms is None or not stored.terms.exact:
        del what["golden"]
    for name, words in what.items():
        for theirs in sorted({getattr(brought, name) for brought in others.values()} - {getattr(voucher, name)}):
            groups = ", ".join(sorted(group for group, brought in others.items() if getattr(brought, name) == theirs))
            yield f"{words} is {_short(getattr(voucher, name))}, not {_short(theirs)} as of {groups}"


def _names(participants: Collection[Participant]) -> str:
    return ", ".join(sorted({who.group for who in participants}))


def _short(digest: str) -> str:
    return digest[:16] or _ABSENT
