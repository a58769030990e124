"""Which faults does a scenario come to, exactly? Everything random is drawn here, from the seed, before anything runs.

Pure: the same scenario, config and seed give the same plan, so a run can be made again. A plan is a list of runs, each
with its config, its failpoints (which strike from inside) and its strikes (which come from outside).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.load import ConfigError, load
from configs.schema import Config
from configs.shapes import ranks_per_group
from ops.chaos.driver import Strike, Target
from ops.chaos.fits import inside
from ops.chaos.reading import config_of, layers
from ops.chaos.scenario import ANY, Bounds, Case, Fault, Scenario, find
from ops.chaos.traces import read_trace
from ops.verdict.limits import Limits

ONLY = "run"
"""The name of the run of a scenario that has one. It lies in the scenario's folder itself."""
EARLY, LATER = 6, 12
"""Steps at which a matrix strikes: the second one where a first death must come before."""
JOINT_REST = 5
"""Steps that all groups commit together after the last fault of a matrix."""
TO_THE_END = frozenset({"closing", "shutdown"})
"""Failpoints that only a run which reaches its last step passes."""
HEALS = frozenset({"heal_send", "heal_recv"})
"""Failpoints that are passed because somebody heals."""
ANYTIME = frozenset({"build", "configure", "save_stage", "save_write", "save_rename"})
"""Failpoints whose first pass strikes: their steps are not each step's."""
PAUSE_S = 3.0
"""A source that is stopped holds the only good state, so nobody may bury it: it goes on after this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """One run."""

    name: str
    config: Config
    """With its failpoints."""
    strikes: tuple[Strike, ...]
    limits: Limits
    settle: int | None
    away: frozenset[str] = frozenset()
    """Groups that are not there at the start."""
    hosts: bool = False
    """Every group has a host of its own."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What goes wrong, for people, in order."""
        return (*self.config.chaos.failpoints, *map(str, self.strikes))


def schedule(
    scenario: Scenario, *, source: str, seed: int | None = None, overrides: Sequence[str] = ()
) -> list[Planned]:
    """The runs of a scenario that ``ops.chaos.reading`` found good. ``overrides`` are config keys from the command
    line, which win. Raises ConfigError."""
    seed = scenario.seed if seed is None else seed
    path = find(source)
    base = config_of(scenario, path)
    configs: dict[str, Config] = {}
    plans = []
    for case in _cases(scenario):
        keys = repr(case.keys)  # the runs of a matrix differ in their failpoints only
        if keys not in configs:
            configs[keys] = load(base, overrides, layers(scenario, case, where=str(path)))
        draw = random.Random(f"{seed}/{case.name}")
        plans.append(_plan(scenario, case, configs[keys], draw, folder=path.parent))
    return plans


def _cases(scenario: Scenario) -> Iterator[Case]:
    if scenario.faults:
        yield Case(name=ONLY, faults=scenario.faults)
    yield from scenario.cases
    if scenario.matrix is not None:
        for name in scenario.matrix.names:
            for action in scenario.matrix.actions:
                yield _cell(name, action)


def _cell(name: str, action: str) -> Case:
    """The run of one failpoint and one action. A heal needs somebody who has died: g0 for what its source does to
    itself, else g1, whose successor then dies too."""
    its: dict[str, Any] = {"group": "g1", "at": name, "do": action}
    if name in TO_THE_END:
        return Case(name=f"{name}-{action}", faults=(Fault(**its),), keys={"training.steps": LATER}, settle=0)
    if name in HEALS:
        first = Fault(group="g1" if name == "heal_recv" else "g0", step=EARLY)
        if name == "heal_send" and action == "stop":
            its["seconds"] = PAUSE_S
        return Case(name=f"{name}-{action}", faults=(first, Fault(**its)), settle=JOINT_REST)
    fault = Fault(**its) if name in ANYTIME else Fault(**its, step=EARLY)
    return Case(name=f"{name}-{action}", faults=(fault,), settle=JOINT_REST)


def _plan(scenario: Scenario, case: Case, config: Config, draw: random.Random, *, folder: Path) -> Planned:
    points: list[str] = []
    strikes: list[Strike] = []
    away: set[str] = set()
    for fault in case.faults:
        if fault.at is not None:
            group, step = _group(fault, config, draw), _step(fault, draw)
            points.append(str(inside(fault, group=group, step=step, rank=_rank(fault, config, draw))))
        elif fault.trace is not None:
            found, absent = _trace(fault, folder, config)
            strikes += found
            away |= absent
        else:
            strikes += _outside(fault, config, draw)
    settle = scenario.settle if case.settle is None else case.settle or None
    limits = _limits(case.limits or scenario.limits, config, points, strikes, settle)
    if points:
        chaos = config.chaos.model_copy(update={"failpoints": tuple(points)})
        config = config.model_copy(update={"chaos": chaos})
    return Planned(
        name=case.name,
        config=config,
        strikes=_in_order(strikes),
        limits=limits,
        settle=settle,
        away=frozenset(away),
        hosts=scenario.hosts,
    )


def _outside(fault: Fault, config: Config, draw: random.Random) -> Iterator[Strike]:
    """One strike, or those of a series."""
    if fault.step is not None or fault.between is not None:
        yield _strike(fault, config, draw, step=_step(fault, draw))
        return
    t, until = 0.0, fault.until_s or 0.0
    while (t := t + _gap(fault, draw)) < until:
        yield _strike(fault, config, draw, at_s=t)


def _gap(fault: Fault, draw: random.Random) -> float:
    return draw.expovariate(1 / fault.mtbf_s) if fault.mtbf_s is not None else float(fault.every_s or 0.0)


def _strike(
    fault: Fault, config: Config, draw: random.Random, *, step: int | None = None, at_s: float | None = None
) -> Strike:
    whole = fault.target in (Target.LIGHTHOUSE, Target.NETWORK) and fault.group == ANY
    return Strike(
        target=fault.target,
        group=None if whole or fault.target is Target.LIGHTHOUSE else _group(fault, config, draw),
        rank=_rank(fault, config, draw) if fault.target is Target.RANK else None,
        action=fault.do,
        seconds=fault.seconds,
        amount=fault.amount,
        step=step,
        at_s=at_s,
        apart=not fault.together and at_s is None,
    )


def _group(fault: Fault, config: Config, draw: random.Random) -> str:
    return f"g{draw.randrange(config.launch.groups)}" if fault.group == ANY else fault.group


def _rank(fault: Fault, config: Config, draw: random.Random) -> int:
    return draw.randrange(ranks_per_group(config)) if fault.rank == ANY else int(fault.rank)


def _step(fault: Fault, draw: random.Random) -> int | None:
    return fault.step if fault.between is None else draw.randint(*fault.between)


def _in_order(strikes: list[Strike]) -> tuple[Strike, ...]:
    """By step; those with a moment after them, by moment. Faults that come together keep their order."""
    return tuple(sorted(strikes, key=lambda s: (s.at_s is not None, s.at_s or 0.0, s.step or 0)))


def _trace(fault: Fault, folder: Path, config: Config) -> tuple[list[Strike], set[str]]:
    """The strikes of a spot trace, and the groups that it does not know to be there at its beginning."""
    moves, problems = read_trace(folder / str(fault.trace), groups=config.launch.groups)
    if problems:
        raise ConfigError(problems)
    strikes: list[Strike] = []
    there: dict[str, bool] = {}
    for move in moves:
        there.setdefault(move.group, move.seconds <= 0 and move.what == "join")
        if move.seconds > 0:
            action = "join" if move.what == "join" else fault.do
            at_s = move.seconds / fault.speed
            strikes.append(Strike(target=Target.NODE, group=move.group, action=action, at_s=at_s, apart=False))
    return strikes, {group for group, at_start in there.items() if not at_start}


def _limits(bounds: Bounds, config: Config, points: list[str], strikes: list[Strike], settle: int | None) -> Limits:
    made = sum(strike.action != "join" for strike in strikes)
    timed = any(strike.at_s is not None for strike in strikes)
    return Limits(
        steps=bounds.steps or (config.training.steps if settle is None else None),
        exit=0 if settle is None else 75,
        digests=bounds.digests and config.debug.digest_interval == 1,
        shared_disk=bounds.shared_disk,
        failpoints=tuple(points) if bounds.all_fire else (),
        strikes=0 if timed else made,  # a run may be over before the last moment of a series
        discards=bounds.discards,
        rollbacks=bounds.rollbacks,
        restarts=bounds.restarts,
        stall_s=bounds.stall_s,
        recovery_s=bounds.recovery_s,
    )
