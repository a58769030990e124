"""``phalanx chaos run NAME|FILE``: runs with injected faults, and a verdict."""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from configs.names import nearest
from configs.secret import SECRET, read_secret
from configs.words import Exit
from ops.chaos.play import Outcome, Played, Stage
from ops.chaos.reading import load
from ops.chaos.scenario import find
from ops.chaos.schedule import Planned, schedule
from ops.console import Console
from ops.counting import counted
from ops.launch.requests import Requests
from ops.launch.warm import Warm
from ops.result import Result, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    """A scenario, a seed, where the runs lie, which of them."""
    parser.add_argument("scenario", metavar="NAME|FILE", help="a shipped scenario or a TOML file")
    parser.add_argument("--seed", type=int, metavar="N", help="draws who and when (default: the scenario's own)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="of the runs (default: a new one in outputs)")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this run of the scenario; repeatable")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Exit 0 when every promise was kept, 1 when not, 130 when interrupted."""
    scenario = load(options.scenario, options.overrides)
    seed = scenario.seed if options.seed is None else options.seed
    plans = schedule(scenario, source=options.scenario, seed=seed, overrides=options.overrides)
    if options.case:
        plans = _chosen(plans, options.case, scenario=options.scenario)
    root = options.folder or _new_folder(find(options.scenario).stem)
    _begin_in(root)
    requests, warm = Requests(), Warm(threads=plans[0].config.launch.threads_per_rank)
    if any(plan.hosts for plan in plans) and not read_secret():
        os.environ[SECRET] = secrets.token_hex(16)  # off loopback one is required; the warm server passes it on
    warm.start_server()
    began = time.monotonic()
    with requests.heard():
        stage = Stage(
            root,
            warm=warm,
            console=console,
            requests=requests,
            limit_s=scenario.limit_s,
            scenario=options.scenario,
            seed=seed,
        )
        outcomes = stage.play(plans, compare=scenario.compare, tell=lambda played: console.say(_line(played)))
    wall_s = time.monotonic() - began
    passed = len(outcomes) == len(plans) and all(outcome.verdict.holds for outcome in outcomes)
    code = Exit.INTERRUPTED if requests.stopping else Exit.DONE if passed else Exit.CHECK_FAILED
    data = {
        "verdict": "pass" if passed else "fail",
        "violations": [violation for outcome in outcomes for violation in outcome.as_json()["violations"]],
        "scenario": options.scenario,
        "seed": seed,
        "folder": str(root),
        "wall_s": wall_s,
        "cases": [outcome.as_json() for outcome in outcomes],
    }
    return Result(code=code, text=_text(outcomes, root, wall_s=wall_s, planned=len(plans)), data=data)


def _chosen(plans: Sequence[Planned], names: Sequence[str], *, scenario: str) -> list[Planned]:
    """The runs of those names, in their order. Raises UsageError with every name that there is none of."""
    known = [plan.name for plan in plans]
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        near = [(name, nearest(name, known)) for name in unknown]
        told = ", ".join(f"{name} (did you mean {hint}?)" if hint else name for name, hint in near)
        raise UsageError(f"no such run of {scenario}: {told} (see phalanx chaos show {scenario})")
    return [plan for plan in plans if plan.name in names]


def _begin_in(root: Path) -> None:
    """Make the folder of the runs. Raises UsageError where it is none, or has something in it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        empty = not any(root.iterdir())
    except OSError as error:
        raise UsageError(f"--folder {root}: {error.strerror}") from error
    if not empty:
        raise UsageError(f"--folder {root}: expected an empty folder, a chaos run begins from nothing")


def _new_folder(name: str) -> Path:
    """outputs/chaos-NAME, or the first free one of chaos-NAME-2, -3, ..."""
    names = itertools.chain([f"chaos-{name}"], (f"chaos-{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("outputs") / each for each in names) if not path.exists())


def _line(played: Played) -> str:
    return f"{played.plan.name}: over after {played.wall_s:.1f} s ({played.reason})"


def _text(outcomes: Sequence[Outcome], root: Path, *, wall_s: float, planned: int) -> str:
    lines = []
    for outcome in outcomes:
        name, holds = outcome.played.plan.name, outcome.verdict.holds
        lines.append(
            f"{'pass' if holds else 'FAIL'}  {name}: {counted(outcome.steps, 'step')}, {outcome.played.wall_s:.1f} s"
        )
        if not holds:
            lines += [f"    {line}" for line in outcome.verdict.text().splitlines()]
    bad = sum(not outcome.verdict.holds for outcome in outcomes)
    head = (
        "verdict: pass"
        if not bad and len(outcomes) == planned
        else f"verdict: FAIL ({bad} of {counted(planned, 'run')})"
    )
    return "\n".join([*lines, f"{head}; {counted(len(outcomes), 'run')} in {wall_s:.0f} s, in {root}"])
