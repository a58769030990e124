"""Was every sample used exactly once, in the order of an undisturbed run?

A pure function over the event logs. Microbatch ids are numbers of the global stream, so the shares of each confirmed
step must together be exactly the next contiguous range of ids: nothing missing, nothing twice, nothing early. A run
that goes on with other ranks or another local batch has microbatches of another size, and numbers them by it: such a
stretch begins only where the samples go on without a gap. One commit record of a confirmed lineage is enough (a group
that died between vote and update is spoken for by the others), but those that exist must say the same.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from configs.run_folder import Event
from configs.words import Lineage
from ops.history import Chain, Finding, Logs, commits_by_lineage, confirmed_chain, lineage_of, time_of

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
    findings: tuple[Finding, ...]

    @property
    def violations(self) -> tuple[str, ...]:
        return tuple(finding.why for finding in self.findings)

    @property
    def holds(self) -> bool:
        return not self.violations and not self.missing and not self.duplicated and self.order_matches

    def as_json(self) -> dict[str, Any]:
        """The object of ``phalanx ledger --json``; at most the first 20 violations."""
        counts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "findings"}
        return {**counts, "violations": list(self.violations[:SHOWN]), "holds": self.holds}


def read_ledger(logs: Logs) -> Ledger:
    """The ledger of a run."""
    chain = confirmed_chain(logs.of("lighthouse"))
    records = commits_by_lineage(logs)
    told = {lineage_of(event): event for event in logs.of("lighthouse", "confirmed")}
    findings = list(chain.findings)
    stretches = [_Stretch(begin=0, size=None)]
    samples, size, in_order = 0, 1, True
    for lineage in chain.lineages:
        said = [event for _, event in records.get(lineage, ())]
        if not said:
            findings.append(Finding(told[lineage], f"{lineage}: confirmed, but no group's log has its commit"))
            stretches[-1].next += size
            continue
        findings.extend(dataclasses.replace(f, why=f"{lineage}: {f.why}") for f in _disagreements(said))
        ids = _ids(said[0])
        each = _size(ids, said[0])
        if not stretches[-1].goes_on(ids) and each and (begin := stretches[-1].end_in(each)) is not None:
            stretches.append(_Stretch(begin=begin, size=each))
        if not stretches[-1].goes_on(ids):
            in_order = False
            why = f"{lineage}: computed microbatches {_ranges(ids)}, expected from {stretches[-1].next} on"
            findings.append(Finding(said[0], why))
        stretches[-1].add(ids, size=each)
        samples += int(said[0].get("samples") or 0)
        size = len(ids) or size
    orphaned, provisional = _unconfirmed(logs, chain=chain, records=records)
    if not chain.lineages:
        findings.append(Finding(None, "no step was ever confirmed"))
    return Ledger(
        steps=chain.end.step,
        samples=samples,
        microbatches=sum(stretch.used.total() for stretch in stretches),
        missing=sum(stretch.missing for stretch in stretches),
        duplicated=sum(stretch.used.total() - len(stretch.used) + stretch.early for stretch in stretches),
        order_matches=in_order,
        orphaned=orphaned,
        provisional=provisional,
        rolled_back=len(chain.rolled_back),
        findings=tuple(findings),
    )


@dataclasses.dataclass(kw_only=True)
class _Stretch:
    """Steps whose microbatches have one size: ``size`` samples, None before the first of them is known."""

    begin: int
    size: int | None
    used: Counter[int] = dataclasses.field(default_factory=Counter)
    next: int = -1

    def __post_init__(self) -> None:
        self.next = self.begin

    def goes_on(self, ids: list[int]) -> bool:
        """Whether these are the next ones."""
        return sorted(ids) == list(range(self.next, self.next + len(ids)))

    def end_in(self, size: int) -> int | None:
        """The next id, had microbatches another size; None where that is no whole number, or it is the same size."""
        if self.size in (None, size) or self.next * self.size % size:
            return None
        return self.next * self.size // size

    def add(self, ids: list[int], *, size: int | None) -> None:
        self.size = self.size or size
        self.used.update(ids)
        self.next = max(self.next, max(ids, default=-1) + 1)

    @property
    def early(self) -> int:
        """Those that an earlier stretch had used."""
        return sum(1 for i in self.used if i < self.begin)

    @property
    def missing(self) -> int:
        return self.next - self.begin - (len(self.used) - self.early)


def _size(ids: list[int], commit: Event) -> int | None:
    """Samples of each microbatch of a commit; None where they do not come out even."""
    samples = int(commit.get("samples") or 0)
    return samples // len(ids) if ids and samples and samples % len(ids) == 0 else None


def _ids(commit: Event) -> list[int]:
    """The microbatch ids of a commit, of all participants."""
    shares = commit.get("shares")
    return [int(i) for share in shares.values() for i in share] if isinstance(shares, dict) else []


def _disagreements(said: list[Event]) -> list[Finding]:
    """What the records of one lineage say differently, or what one of them says of itself that cannot be."""
    first = said[0]
    found = []
    for field in ("shares", "samples", "tokens", "outcome", "participants", "digest"):
        known = [e for e in said if field != "digest" or e.get(field)]  # it need not have been asked for
        other = next((e for e in known[1:] if e.get(field) != known[0].get(field)), None)
        if other is not None:
            found.append(Finding(other, f"groups disagree about its {field}", about=field))
    strangers = set(first.get("shares") or ()) - set(first.get("participants") or ())
    if strangers:
        found.append(Finding(first, f"shares of {', '.join(sorted(strangers))}, not a participant"))
    busy = [g for g in first.get("healing") or () if (first.get("shares") or {}).get(g)]
    if busy:
        found.append(Finding(first, f"{', '.join(busy)} computed a share while healing"))
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
