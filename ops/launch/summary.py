"""What does a launch say at its end? The object of ``phalanx launch --json`` and the same as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from configs.words import Exit
from ops.history import digests, read_logs
from ops.recovery import Recovery
from ops.report import Report, read_plan, read_report, text_of
from ops.result import Result


def summarise(run: Path, *, code: int, reason: str, since: float, undisturbed: Path | None = None) -> Result:
    """Read a run's logs after it has ended. ``undisturbed``: the run whose final state must be the same; where that,
    the groups' agreement or the ledger does not hold, a code of 0 becomes 1."""
    logs = read_logs(run)
    report = read_report(logs, since=since, plan=read_plan(run))
    data = launch_json(report, run=run)
    lines = [f"{run}: {reason}"]
    checks: list[bool] = []
    if "lighthouse" in logs.by_writer:
        lines.append(text_of(report, of_launch=True))
        checks = [report.ledger.holds, report.digests_agree is not False]
    else:  # a run that was joined: what was confirmed is written where its lighthouse runs
        data["ledger"] = None
        lines.append("  no lighthouse log in this folder: what was confirmed is told where the lighthouse runs")
    if undisturbed is not None:
        other, _ = digests(read_logs(undisturbed))
        same = other is not None and other == report.digest
        data |= {"undisturbed_digest": other, "digests_agree": same and report.digests_agree is not False}
        lines.append(f"  {'undisturbed':<12}{other or '-'}  {'the same' if same else 'NOT THE SAME'}")
        checks.append(same)
    if code == Exit.DONE and not all(checks):
        code = Exit.CHECK_FAILED
    return Result(code=int(code), text="\n".join(lines), data={"exit": int(code), "reason": reason, **data})


def launch_json(report: Report, *, run: Path) -> dict[str, Any]:
    """The fields of ``launch --json`` that one run alone gives."""
    return {
        "run": str(run),
        "steps": report.steps,
        "commits": report.commits,
        "discards": sum(report.discards.values()),
        "loss_first": report.loss_first,
        "loss_last": report.loss_last,
        "kills": [_kill(recovery) for recovery in report.recoveries if recovery.killed],
        "ledger": report.ledger.as_json(),
        "digests_agree": report.digests_agree,
        "digest": report.digest,
        "wall_s": report.wall_s,
        "tokens_per_s": report.tokens_per_s,
        "step_s": report.step_s,
        "restarts": dict(report.restarts),
    }


def failed(code: int, reason: str, *, run: Path | None = None) -> Result:
    """A launch that could not begin."""
    data: dict[str, Any] = {"exit": int(code), "error": reason}
    return Result(code=int(code), text=reason, data=data if run is None else {**data, "run": str(run)})


def _kill(recovery: Recovery) -> dict[str, Any]:
    keys = ("group", "t", "stall_s", "recovery_s", "heal_sources", "heal_bytes", "heal_s", "injected")
    every = dataclasses.asdict(recovery)
    return {key: every[key] for key in keys}
