"""Which faults does a scenario come to, exactly? Everything random is drawn here, from the seed, before anything runs.

Pure: the same scenario, config and seed give the same plan, so a run can be made again. A plan is a list of runs, each
with its config, its failpoints (which strike from inside) and its strikes (which come from outside).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from configs import failpoints
from configs.failpoints import Failpoint
from configs.load import ConfigError, load
from configs.problems import Problem
from configs.schema import Config
from configs.shapes import ranks_per_group
from ops.chaos.driver import Strike, Target
from ops.chaos.scenario import ANY, Bounds, Case, Fault, Scenario, find
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
    """The runs of a scenario. ``overrides`` are config keys from the command line, which win. Raises ConfigError."""
    seed = scenario.seed if seed is None else seed
    folder = find(source).parent
    base = scenario.config if (folder / scenario.config).suffix != ".toml" else str(folder / scenario.config)
    plans = []
    for case in _cases(scenario):
        words = [*_words(scenario.keys), *_words(case.keys), *overrides]
        config = _load(base, tuple(words))
        draw = random.Random(f"{seed}/{case.name}")
        plans.append(_plan(scenario, case, config, draw, folder=folder, base=base, words=words))
    return plans


@functools.lru_cache(maxsize=8)
def _load(base: str, words: tuple[str, ...]) -> Config:
    """The runs of a matrix differ in their failpoints only."""
    return load(base, words)


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
    inside: dict[str, Any] = {"group": "g1", "at": name, "do": action}
    if name in TO_THE_END:
        return Case(name=f"{name}-{action}", faults=(Fault(**inside),), keys={"training.steps": LATER}, settle=0)
    if name in HEALS:
        first = Fault(group="g1" if name == "heal_recv" else "g0", step=EARLY)
        if name == "heal_send" and action == "stop":
            inside["seconds"] = PAUSE_S
        return Case(name=f"{name}-{action}", faults=(first, Fault(**inside)), settle=JOINT_REST)
    fault = Fault(**inside) if name in ANYTIME else Fault(**inside, step=EARLY)
    return Case(name=f"{name}-{action}", faults=(fault,), settle=JOINT_REST)


def _plan(
    scenario: Scenario,
    case: Case,
    config: Config,
    draw: random.Random,
    *,
    folder: Path,
    base: str,
    words: list[str],
) -> Planned:
    points: list[str] = []
    strikes: list[Strike] = []
    away: set[str] = set()
    for fault in case.faults:
        if fault.at is not None:
            points.append(str(_inside(fault, config, draw)))
        elif fault.trace is not None:
            found, absent = _trace(fault, folder)
            strikes += found
            away |= absent
        else:
            strikes += _outside(fault, config, draw)
    own = [*words, "--chaos.failpoints", ",".join(points)] if points else words
    settle = scenario.settle if case.settle is None else case.settle or None
    return Planned(
        name=case.name,
        config=load(base, own),
        strikes=_in_order(strikes),
        limits=_limits(case.limits or scenario.limits, config, points, strikes, settle),
        settle=settle,
        away=frozenset(away),
        hosts=scenario.hosts,
    )


def _inside(fault: Fault, config: Config, draw: random.Random) -> Failpoint:
    assert fault.at is not None
    argument = fault.seconds if fault.do in ("stop", "delay") else fault.amount
    point = Failpoint(
        group=_group(fault, config, draw),
        name=fault.at,
        step=_step(fault, draw),
        part=fault.part,
        rank=_rank(fault, config, draw),
        action=fault.do,
        argument=argument,
    )
    try:
        return failpoints.parse(str(point))
    except ValueError as error:
        raise ConfigError([Problem(where="scenario", key="faults", expected=f"{point}: {error}")]) from error


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


def _trace(fault: Fault, folder: Path) -> tuple[list[Strike], set[str]]:
    """The strikes of a spot trace, and the groups that it does not know to be there at its beginning."""
    path = folder / str(fault.trace)
    strikes: list[Strike] = []
    there: dict[str, bool] = {}
    for number, row in enumerate(_rows(path), 1):
        try:
            seconds, group, what = float(row[0]), row[1].strip(), row[2].strip()
            action = {"join": "join", "leave": fault.do}[what]
        except (ValueError, IndexError, KeyError) as error:
            expected = "expected lines of seconds,group,join|leave"
            raise ConfigError(
                [Problem(where=f"{path}:{number}", key="trace", expected=expected, found=repr(row))]
            ) from error
        there.setdefault(group, seconds <= 0 and what == "join")
        if seconds > 0:
            strikes.append(
                Strike(target=Target.NODE, group=group, action=action, at_s=seconds / fault.speed, apart=False)
            )
    return strikes, {group for group, at_start in there.items() if not at_start}


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="") as file:
            yield from (row for row in csv.reader(file) if row and not row[0].startswith("#"))
    except OSError as error:
        raise ConfigError([Problem(where=str(path), key="trace", expected=f"cannot be read: {error}")]) from error


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


def _words(keys: dict[str, Any]) -> list[str]:
    """Config keys as arguments."""
    return [f"--{key}={_text(value)}" for key, value in keys.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
