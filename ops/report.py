"""What did a run come to: wall time, work kept and thrown away, speed, what each failure cost?

A pure function over the event logs. Ratios count the confirmed history; counts of attempts are those made since
``since``, so that a launch can speak of itself in a folder that others used before it. Tables are in report_text.py,
drawings in report_charts.py and report_html.py.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.run_folder import Event, RunFolder
from configs.words import Outcome
from ops.clocks import Clock, align
from ops.counting import counted
from ops.goodput import GONE, WORK, Goodput, read_goodput
from ops.history import Indexed, Logs, confirmed_commits, digests, lineage_of, time_of
from ops.ledger import Ledger, read_ledger
from ops.ratios import DEFINITIONS, Ratios, read_ratios
from ops.recovery import Recovery, recoveries, summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run's config says that its events do not: how many groups, and what an hour of one costs."""

    groups: int = 0
    price_per_group_hour: float | None = None


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
    """By group: every second of the wall time, by phase (``goodput``)."""
    goodput: Goodput
    ratios: Ratios
    loss_first: float | None
    loss_last: float | None
    recoveries: tuple[Recovery, ...]
    cost_per_million_tokens: float | None
    clocks: tuple[Clock, ...]
    """Those that differed from the lighthouse's."""
    damaged: tuple[str, ...]
    """Lines of the logs that could not be read."""
    elsewhere: tuple[str, ...]
    """Groups that took part and whose logs are not in this folder."""
    checkpoints: Mapping[str, int]
    digest: str | None
    digests_agree: bool | None
    ledger: Ledger

    def as_json(self) -> dict[str, Any]:
        """The object of ``phalanx report --json``."""
        own = {"goodput", "ratios", "recoveries", "ledger", "clocks"}
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in own}
        return {
            **flat,
            **self.ratios_by_name,
            "began": self.goodput.began,
            "running": self.goodput.running,
            "undisturbed_step_s": self.ratios.undisturbed_step_s,
            "recoveries": [r.as_json() for r in self.recoveries],
            "recovery_quantiles_s": summary(self.recoveries),
            "clocks": [dataclasses.asdict(clock) for clock in self.clocks],
            "definitions": {d.name: {"means": d.means, "source": d.source} for d in DEFINITIONS},
            "ledger": self.ledger.as_json(),
        }

    @property
    def ratios_by_name(self) -> dict[str, float | None]:
        """The figure of each of ``ops.ratios.DEFINITIONS``."""
        told = {d.name: getattr(self.ratios, d.name, None) for d in DEFINITIONS}
        own = ("effective_training_time_ratio", "scheduling_ratio", "runtime_ratio")
        return told | {name: getattr(self.goodput, name) for name in own}


def read_plan(run: Path) -> Plan:
    """What the config in a run folder says; a folder without one that can be read says nothing."""
    try:
        launch = tomllib.loads(RunFolder(run).config.read_text()).get("launch", {})
    except (OSError, ValueError):
        return Plan()
    groups, price = launch.get("groups"), launch.get("price_per_group_hour")
    return Plan(
        groups=groups if isinstance(groups, int) else 0,
        price_per_group_hour=float(price) if isinstance(price, int | float) else None,
    )


def read_report(logs: Logs, *, since: float = 0.0, plan: Plan | None = None) -> Report:
    """The report of a run, or of what a launch that began at ``since`` (unix seconds) added to it."""
    plan = plan or Plan()
    aligned, clocks = align(logs)
    logs = Indexed.of_logs(aligned)
    named = _named(logs)
    never = _never_came(logs, named, plan)
    history = confirmed_commits(logs)
    recent = [e for e in history if time_of(e) >= since]
    made = {lineage_of(e): e for _, e in logs.of_groups("commit") if time_of(e) >= since}
    discards = _discards(logs, since)
    goodput = read_goodput(logs, since=since, groups=never)
    tokens = sum(int(e.get("tokens") or 0) for e in recent)
    digest, agree = digests(logs)
    return Report(
        wall_s=goodput.wall_s,
        steps=int(history[-1].get("step") or 0) if history else 0,
        commits=len(made),
        skipped=sum(e.get("outcome") == Outcome.SKIPPED for e in made.values()),
        discards=dict(discards),
        restarts=dict(Counter(str(e.get("group")) for e in logs.of("launcher", "restart") if time_of(e) >= since)),
        tokens=tokens,
        tokens_per_s=_speed(recent),
        step_s=_median([float(e["seconds"]) for e in recent if e.get("seconds")]),
        phases_s=_phases(logs, since),
        seconds=goodput.seconds,
        goodput=goodput,
        ratios=read_ratios(logs, groups=max(plan.groups, len(named)), since=since),
        loss_first=_loss(history[:1]),
        loss_last=_loss(history[-1:]),
        recoveries=tuple(r for r in recoveries(logs) if r.t >= since),
        cost_per_million_tokens=_cost(goodput, tokens, plan.price_per_group_hour),
        clocks=clocks,
        damaged=logs.damaged,
        elsewhere=tuple(sorted(named - set(logs.groups))),
        checkpoints=dict(Counter(str(e.get("status")) for _, e in logs.of_groups("checkpoint") if time_of(e) >= since)),
        digest=digest,
        digests_agree=agree,
        ledger=read_ledger(logs),
    )


def text_of(report: Report, *, of_launch: bool = False) -> str:
    """The report for people; ``of_launch``: it speaks of one launch, and others may have been there before."""
    saved = ", ".join(f"{count} {status}" for status, count in report.checkpoints.items())
    rows = [
        ("wall time", f"{report.wall_s:.1f} s{', and going on' if report.goodput.running else ''}"),
        ("time", _time_text(report)),
        ("goodput", goodput_text(report)),
        ("loss", _losses(report)),
        ("attempts", _attempts(report)),
        ("speed", _speed_text(report)),
        ("a step", ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in report.phases_s.items()) or "-"),
        *(("failure", failure_text(recovery)) for recovery in report.recoveries),
        ("ledger", ledger_text(report.ledger)),
        ("checkpoints", saved or ("none saved by this launch" if of_launch else "none saved")),
    ]
    if report.digest or report.digests_agree is not None:
        verdict = "THE GROUPS DIFFER" if report.digests_agree is False else "the same in every group"
        rows.append(("digest", f"{report.digest or '-'}  {verdict}"))
    return "\n".join(f"  {name:<12}{value}" for name, value in rows)


def _time_text(report: Report) -> str:
    """Where the time of all groups went, the most first."""
    total = report.goodput.total
    everything = math.fsum(total.values()) or 1.0
    effective = report.goodput.effective_training_time_ratio or 0.0
    losses = sorted(((s, p) for p, s in total.items() if p not in WORK), reverse=True)
    shown = [f"{phase} {s / everything:.1%}" for s, phase in losses if s / everything >= 0.0005]
    return ", ".join([f"work that was kept {effective:.1%}", *shown])


def goodput_text(report: Report) -> str:
    """The factors and their product."""
    ratios = report.ratios
    if ratios.goodput_ratio is None:
        return "- (no two steps in a row with all groups)"
    factors = (ratios.commit_ratio, ratios.participation_ratio, ratios.step_time_ratio)
    names = ("commits", "participation", "step time")
    told = " x ".join(f"{name} {f:.3f}" for name, f in zip(names, factors, strict=True) if f is not None)
    return f"{ratios.goodput_ratio:.3f} of the undisturbed speed = {told}"


def failure_text(recovery: Recovery) -> str:
    """One line on a death and what followed."""
    back = (
        "did not come back in its launch"
        if recovery.recovery_s is None
        else f"back with a share after {recovery.recovery_s:.2f} s"
    )
    stall = "" if recovery.stall_s is None else f"; next attempt after {recovery.stall_s:.2f} s"
    heal = ""
    if recovery.heal_sources:
        took = "" if recovery.heal_s is None else f" in {recovery.heal_s:.2f} s"
        heal = f"; healed from {'+'.join(recovery.heal_sources)}: {recovery.heal_bytes / 1e6:.1f} MB{took}"
    return f"{recovery.group} ({recovery.reason.partition(';')[0]}){stall}; {back}{heal}"


def ledger_text(ledger: Ledger) -> str:
    """One line on the ledger, and its first violations."""
    order = "order as undisturbed" if ledger.order_matches else "ORDER DIFFERS"
    counts = f"{counted(ledger.steps, 'step')}, {counted(ledger.samples, 'sample')}"
    twice = f"missing {ledger.missing}, duplicated {ledger.duplicated}"
    head = f"{counts}, {twice}, {order}, {ledger.orphaned} orphaned"
    return "\n".join([head, *(f"    {violation}" for violation in ledger.violations[:10])])


def _discards(logs: Logs, since: float) -> Counter[str]:
    """Attempts that at least one group discarded, by the first reason given."""
    reasons: dict[Any, str] = {}
    for group, event in logs.of_groups("discard"):
        if time_of(event) >= since:
            reasons.setdefault(event.get("attempt", (group, time_of(event))), str(event.get("reason")))
    return Counter(reasons.values())


def _named(logs: Logs) -> set[str]:
    """Every group that wrote or is written of."""
    told = {str(g) for events in logs.by_writer.values() for e in events for g in e.get("participants") or ()}
    return told | set(logs.groups)


def _never_came(logs: Logs, named: set[str], plan: Plan) -> Sequence[str]:
    """The groups that the config counts and nobody ever heard of; groups with names of their own are not counted."""
    counted = [f"g{number}" for number in range(plan.groups)]
    return [g for g in counted if g not in named] if named <= set(counted) else []


def _cost(goodput: Goodput, tokens: int, price: float | None) -> float | None:
    """What a million committed tokens cost, at ``price`` an hour of a group that is there."""
    if price is None or not tokens:
        return None
    there = math.fsum(seconds for phase, seconds in goodput.total.items() if phase != GONE)
    return price * there / 3600 / tokens * 1e6


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
