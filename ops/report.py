"""What did a run come to: wall time, work kept and thrown away, speed, what each failure cost?

A pure function over the event logs. Ratios count the confirmed history; counts of attempts are those made since
``since``, so that a launch can speak of itself in a folder that others used before it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from configs.run_folder import Event
from configs.words import Outcome
from ops.history import Logs, confirmed_commits, digests, lineage_of, time_of
from ops.ledger import Ledger, read_ledger
from ops.recovery import Recovery, recoveries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Counts, seconds, tokens. None where nothing says it."""

    wall_s: float
    steps: int
    commits: int
    skipped: int
    discards: Mapping[str, int]
    restarts: Mapping[str, int]
    tokens: int
    tokens_per_s: float | None
    step_s: float | None
    phases_s: Mapping[str, float]
    """Median seconds of a committed attempt that rank 0 of a group spends in each phase."""
    seconds: Mapping[str, Mapping[str, float]]
    """By group: seconds of rank 0 in each phase, of all attempts."""
    commit_ratio: float | None
    loss_first: float | None
    loss_last: float | None
    recoveries: tuple[Recovery, ...]
    checkpoints: Mapping[str, int]
    digest: str | None
    digests_agree: bool | None
    ledger: Ledger

    def as_json(self) -> dict[str, Any]:
        """The object of ``phalanx report --json``."""
        flat = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**flat, "recoveries": [r.as_json() for r in self.recoveries], "ledger": self.ledger.as_json()}


def read_report(logs: Logs, *, since: float = 0.0) -> Report:
    """The report of a run, or of what a launch that began at ``since`` (unix seconds) added to it."""
    history = confirmed_commits(logs)
    recent = [e for e in history if time_of(e) >= since]
    made = {lineage_of(e): e for _, e in logs.of_groups("commit") if time_of(e) >= since}
    discards = _discards(logs, since)
    seconds = _wall(logs, since)
    tokens = sum(int(e.get("tokens") or 0) for e in recent)
    digest, agree = digests(logs)
    attempts = len(made) + discards.total()
    return Report(
        wall_s=seconds,
        steps=int(history[-1]["step"]) if history else 0,
        commits=len(made),
        skipped=sum(e.get("outcome") == Outcome.SKIPPED for e in made.values()),
        discards=dict(discards),
        restarts=dict(Counter(str(e.get("group")) for e in logs.of("launcher", "restart") if time_of(e) >= since)),
        tokens=tokens,
        tokens_per_s=_speed(recent),
        step_s=_median([float(e["seconds"]) for e in recent if e.get("seconds")]),
        phases_s=_phases(logs, since),
        seconds={group: _phase_sums(logs.of(group, "commit", "discard"), since) for group in logs.groups},
        commit_ratio=len(recent) / attempts if attempts else None,
        loss_first=_loss(history[:1]),
        loss_last=_loss(history[-1:]),
        recoveries=tuple(r for r in recoveries(logs) if r.t >= since),
        checkpoints=dict(Counter(str(e.get("status")) for _, e in logs.of_groups("checkpoint") if time_of(e) >= since)),
        digest=digest,
        digests_agree=agree,
        ledger=read_ledger(logs),
    )


def text_of(report: Report) -> str:
    """The report for people."""
    rows = [
        ("wall time", f"{report.wall_s:.1f} s"),
        ("loss", _losses(report)),
        ("attempts", _attempts(report)),
        ("speed", _speed_text(report)),
        ("a step", ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in report.phases_s.items()) or "-"),
        *(("failure", failure_text(recovery)) for recovery in report.recoveries),
        ("ledger", ledger_text(report.ledger)),
        ("checkpoints", ", ".join(f"{count} {status}" for status, count in report.checkpoints.items()) or "none"),
    ]
    if report.digest or report.digests_agree is not None:
        verdict = "THE GROUPS DIFFER" if report.digests_agree is False else "the same in every group"
        rows.append(("digest", f"{report.digest or '-'}  {verdict}"))
    return "\n".join(f"  {name:<12}{value}" for name, value in rows)


def failure_text(recovery: Recovery) -> str:
    """One line on a death and what followed."""
    back = "never came back" if recovery.recovery_s is None else f"back with a share after {recovery.recovery_s:.2f} s"
    stall = "" if recovery.stall_s is None else f"; next attempt after {recovery.stall_s:.2f} s"
    heal = ""
    if recovery.heal_sources:
        took = "" if recovery.heal_s is None else f" in {recovery.heal_s:.2f} s"
        heal = f"; healed from {'+'.join(recovery.heal_sources)}: {recovery.heal_bytes / 1e6:.1f} MB{took}"
    return f"{recovery.group} ({recovery.reason.partition(';')[0]}){stall}; {back}{heal}"


def ledger_text(ledger: Ledger) -> str:
    """One line on the ledger, and its first violations."""
    order = "order as undisturbed" if ledger.order_matches else "ORDER DIFFERS"
    counts = f"{ledger.steps} steps, {ledger.samples} samples, missing {ledger.missing}, duplicated {ledger.duplicated}"
    head = f"{counts}, {order}, {ledger.orphaned} orphaned"
    return "\n".join([head, *(f"    {violation}" for violation in ledger.violations[:10])])


def _discards(logs: Logs, since: float) -> Counter[str]:
    """Attempts that at least one group discarded, by the first reason given."""
    reasons: dict[Any, str] = {}
    for group, event in logs.of_groups("discard"):
        if time_of(event) >= since:
            reasons.setdefault(event.get("attempt", (group, time_of(event))), str(event.get("reason")))
    return Counter(reasons.values())


def _wall(logs: Logs, since: float) -> float:
    times = [time_of(e) for events in logs.by_writer.values() for e in events if time_of(e) >= max(since, 1.0)]
    return max(times) - min(times) if times else 0.0


def _speed(commits: list[Event]) -> float | None:
    """Tokens per second from the first to the last commit (the first one's own tokens came before)."""
    if len(commits) < 2:
        return None
    seconds = time_of(commits[-1]) - time_of(commits[0])
    return sum(int(e.get("tokens") or 0) for e in commits[1:]) / seconds if seconds > 0 else None


def _phases(logs: Logs, since: float) -> dict[str, float]:
    """Medians over the commits of all groups; a phase that half of them do not have is left out."""
    commits = [e.get("phases") or {} for _, e in logs.of_groups("commit") if time_of(e) >= since]
    names = dict.fromkeys(name for phases in commits for name in phases)
    medians = {name: _median([float(phases.get(name, 0.0)) for phases in commits]) or 0.0 for name in names}
    return {name: seconds for name, seconds in medians.items() if seconds > 0}


def _phase_sums(events: list[Event], since: float) -> dict[str, float]:
    sums: dict[str, float] = {}
    for event in events:
        if time_of(event) >= since:
            for name, seconds in (event.get("phases") or {}).items():
                sums[name] = sums.get(name, 0.0) + float(seconds)
    return sums


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _loss(commits: list[Event]) -> float | None:
    loss = commits[0].get("loss") if commits else None
    return None if loss is None else float(loss)


def _losses(report: Report) -> str:
    if report.loss_first is None or report.loss_last is None:
        return "-"
    return f"{report.loss_first:.3f} at the first step, {report.loss_last:.3f} at step {report.steps}"


def _attempts(report: Report) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in report.discards.items())
    discarded = f"{sum(report.discards.values())} discarded" + (f" ({reasons})" if reasons else "")
    skipped = f", {report.skipped} skipped" if report.skipped else ""
    return f"{report.commits - report.skipped} updated{skipped}, {discarded}"


def _speed_text(report: Report) -> str:
    if report.tokens_per_s is None or report.step_s is None:
        return "-"
    return f"{report.tokens_per_s:,.0f} tokens/s over the run, median step {report.step_s:.3f} s"
