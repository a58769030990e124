"""Was every sample used exactly once, in the order of an undisturbed run?

A pure function over the event logs. Microbatch ids are numbers of the global stream, so the shares of each confirmed
step must together be exactly the next contiguous range of ids: nothing missing, nothing twice, nothing early. One
commit record of a confirmed lineage is enough (a group that died between vote and update is spoken for by the others),
but those that exist must say the same.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from configs.run_folder import Event
from configs.words import Lineage
from ops.history import Chain, Logs, commits_by_lineage, confirmed_chain, lineage_of, time_of

SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """What the confirmed history used. ``missing`` and ``duplicated`` count microbatches; ``orphaned`` counts commits
    that no quorum confirmed; ``provisional`` those that a later quorum may still confirm."""

    steps: int
    samples: int
    microbatches: int
    missing: int
    duplicated: int
    order_matches: bool
    orphaned: int
    provisional: int
    rolled_back: int
    violations: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.violations and not self.missing and not self.duplicated and self.order_matches

    def as_json(self) -> dict[str, Any]:
        """The object of ``phalanx ledger --json``; at most the first 20 violations."""
        return {**dataclasses.asdict(self), "violations": list(self.violations[:SHOWN]), "holds": self.holds}


def read_ledger(logs: Logs) -> Ledger:
    """The ledger of a run."""
    chain = confirmed_chain(logs.of("lighthouse"))
    records = commits_by_lineage(logs)
    violations = list(chain.contradictions)
    used: Counter[int] = Counter()
    samples, next_id, size, in_order = 0, 0, 1, True
    for lineage in chain.lineages:
        said = [event for _, event in records.get(lineage, ())]
        if not said:
            violations.append(f"{lineage}: confirmed, but no group's log has its commit")
            next_id += size
            continue
        violations.extend(f"{lineage}: {why}" for why in _disagreements(said))
        ids = _ids(said[0])
        if sorted(ids) != list(range(next_id, next_id + len(ids))):
            in_order = False
            violations.append(f"{lineage}: computed microbatches {_ranges(ids)}, expected from {next_id} on")
        used.update(ids)
        samples += int(said[0].get("samples", 0))
        size = len(ids) or size
        next_id = max(next_id, max(ids, default=-1) + 1)
    orphaned, provisional = _unconfirmed(logs, chain=chain, records=records)
    if not chain.lineages:
        violations.append("no step was ever confirmed")
    return Ledger(
        steps=chain.end.step,
        samples=samples,
        microbatches=used.total(),
        missing=next_id - len(used),
        duplicated=used.total() - len(used),
        order_matches=in_order,
        orphaned=orphaned,
        provisional=provisional,
        rolled_back=len(chain.rolled_back),
        violations=tuple(violations),
    )


def _ids(commit: Event) -> list[int]:
    """The microbatch ids of a commit, of all participants."""
    shares = commit.get("shares")
    return [int(i) for share in shares.values() for i in share] if isinstance(shares, dict) else []


def _disagreements(said: list[Event]) -> list[str]:
    """What the records of one lineage say differently, or what one of them says of itself that cannot be."""
    first = said[0]
    found = [
        f"groups disagree about its {field}"
        for field in ("shares", "samples", "tokens", "outcome", "participants")
        if any(other.get(field) != first.get(field) for other in said[1:])
    ]
    if len({event["digest"] for event in said if event.get("digest")}) > 1:
        found.append("groups disagree about its digest")
    strangers = set(first.get("shares") or ()) - set(first.get("participants") or ())
    if strangers:
        found.append(f"shares of {', '.join(sorted(strangers))}, not a participant")
    busy = [g for g in first.get("healing") or () if (first.get("shares") or {}).get(g)]
    if busy:
        found.append(f"{', '.join(busy)} computed a share while healing")
    return found


def _unconfirmed(logs: Logs, *, chain: Chain, records: dict[Lineage, list[tuple[str, Event]]]) -> tuple[int, int]:
    """How many commits are outside the chain for good without ever having been confirmed, and how many (at most the
    newest one) a later quorum may still confirm."""
    named = {lineage for _, event in logs.of_groups("orphaned") if (lineage := lineage_of(event)) is not None}
    outside = (set(records) | named) - set(chain.lineages) - set(chain.rolled_back)
    fenced = max((time_of(event) for event in logs.of("lighthouse", "rollback")), default=0.0)
    hopeful = [
        lineage
        for lineage in outside - named
        if lineage.step == chain.end.step + 1 and time_of(records[lineage][0][1]) > fenced
    ]
    provisional = 1 if hopeful else 0
    return len(outside) - provisional, provisional


def _ranges(ids: list[int]) -> str:
    """``0-3, 8`` for [0, 1, 2, 3, 8]."""
    parts: list[list[int]] = []
    for i in sorted(ids):
        if parts and i == parts[-1][-1] + 1:
            parts[-1].append(i)
        else:
            parts.append([i])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts) or "none"
