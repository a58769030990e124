"""``phalanx chaos show NAME|FILE``: what would go wrong, with whom and when, for a seed. Runs nothing."""

from __future__ import annotations

import argparse

from configs.shapes import ranks_per_group
from ops.chaos.reading import load
from ops.chaos.schedule import schedule
from ops.console import Console
from ops.counting import counted
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A scenario and a seed."""
    parser.add_argument("scenario", metavar="NAME|FILE", help="a shipped scenario or a TOML file")
    parser.add_argument("--seed", type=int, metavar="N", help="draws who and when (default: the scenario's own)")


def run(options: argparse.Namespace, console: Console) -> Result:
    """The plan of every run."""
    del console
    scenario = load(options.scenario)
    seed = scenario.seed if options.seed is None else options.seed
    plans = schedule(scenario, source=options.scenario, seed=seed)
    lines = [scenario.about, f"seed {seed}; {counted(len(plans), 'run')}"]
    for plan in plans:
        launch = plan.config.launch
        groups = f"{counted(launch.groups, 'group')} x {counted(ranks_per_group(plan.config), 'rank')}"
        end = counted(plan.config.training.steps, "step") if plan.settle is None else f"until {plan.settle} quiet steps"
        lines.append(f"{plan.name}: {groups}, {end}")
        lines += [f"    {group} is away at the start" for group in sorted(plan.away)]
        lines += [f"    {fault}" for fault in plan.faults]
    data = {
        "about": scenario.about,
        "seed": seed,
        "cases": [{"name": p.name, "faults": list(p.faults), "away": sorted(p.away)} for p in plans],
    }
    return Result(text="\n".join(lines), data=data)
