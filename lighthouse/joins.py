"""When may a newcomer be seated? At once, unless joins are spaced, or its group's last heal failed.

A join costs those who train the part of its heal that their computing does not hide; a heal that fails costs them the
attempt. So newcomers can be let in at intervals, all that ask together at once; and a group whose heal failed is held
back for as long as that attempt lasted, twice as long each time it happens again: one that was killed in passing is
back at once, one that stalls the others stalls them less and less. ``Joins`` is what the gateway remembers of it, in
memory only: a restarted lighthouse holds nobody back. ``held_back`` is the rule, pure; decide.py applies it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from lighthouse.state import Participant

LONGEST_HOLD_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hold:
    """Until when newcomers wait, on the gateway's clock."""

    until: float = float("-inf")
    """For all of them: joins are spaced."""
    groups: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """For one group: its last heal failed."""

    def release(self, group: str) -> float:
        """When ``group`` may join."""
        return max(self.until, self.groups.get(group, float("-inf")))


def held_back(
    newcomers: Sequence[Participant], *, others: int, least: int, hold: Hold, now: float
) -> dict[Participant, float]:
    """The newcomers that are not seated yet, each with its release.

    ``others``: how many are seated anyway. Nobody is held back while there are fewer than ``least``: then the run
    needs the newcomers more than its peace.
    """
    if others < max(least, 1):
        return {}
    releases = {who: hold.release(who.group) for who in newcomers}
    return {who: at for who, at in releases.items() if at > now}


class Joins:
    """What the gateway remembers of joins and heals. Times are seconds on its clock."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._granted = 0.0
        self._healing: frozenset[Participant] = frozenset()
        self._failed: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def hold(self, *, interval_s: float) -> Hold:
        """Who waits until when, with joins ``interval_s`` apart."""
        until = float("-inf") if self._last is None else self._last + interval_s
        return Hold(until=until, groups=dict(self._until))

    def granted(
        self,
        *,
        members: Sequence[Participant],
        before: Collection[Participant],
        up_to_date: Collection[str],
        now: float,
    ) -> None:
        """A quorum is granted. ``before``: the members of the one before; a first quorum is nobody's join."""
        if before and any(who not in before for who in members):
            self._last = now
        for who in members:
            if who.group in up_to_date:  # whether it was healed or never behind
                self._failed.pop(who.group, None)
                self._until.pop(who.group, None)
        self._granted = now
        self._healing = frozenset(who for who in members if who.group not in up_to_date)

    def lost(self, who: Participant, *, now: float) -> None:
        """An incarnation was buried. One that was healing is held against its group."""
        if who in self._healing:
            self._healing -= {who}
            failed = self._failed[who.group] = self._failed.get(who.group, 0) + 1
            self._until[who.group] = now + min((now - self._granted) * 2 ** min(failed - 1, 16), LONGEST_HOLD_S)
