"""A plan is played: each of its runs from start to end in a folder of its own, then all are judged.

Runs follow one another in this process, with one warm server. Where a scenario compares, an undisturbed run of one
group is made once for all runs that train the same, as long as the longest of them.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from configs.run_folder import RunFolder
from configs.schema import Config
from configs.shapes import global_batch
from configs.words import ExitRequest
from ops.chaos.demo import undisturbed
from ops.chaos.driver import Target
from ops.chaos.network import NIC, Hosts, Network, Proxies
from ops.chaos.schedule import ONLY, Planned
from ops.console import Console
from ops.launch.coordinator import Bindings
from ops.launch.folder import FolderLock, settle_config
from ops.launch.requests import Requests
from ops.launch.run import LocalRun, Orders, layouts_of
from ops.launch.warm import Warm
from ops.verdict.judge import Verdict
from ops.verdict.kept import Kept, keep
from ops.verdict.limits import Limits
from ops.verdict.story import Story, read_story

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """One run that is over."""

    plan: Planned
    folder: Path
    code: int
    reason: str
    wall_s: float
    in_time: bool

    def judge(self, states: dict[int, str], *, scenario: str = "", seed: int = 0) -> Verdict:
        """``states``: the digests of the undisturbed run, by step. What is judged by stays in the run folder."""
        kept = Kept(
            scenario=scenario,
            run=self.plan.name,
            seed=seed,
            limits=dataclasses.replace(self.plan.limits, states=states),
            late_s=None if self.in_time else self.wall_s,
        )
        keep(self.folder, kept)
        return kept.verdict(read_story(self.folder))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run and its verdict."""

    played: Played
    verdict: Verdict
    steps: int
    compared: int
    """Steps whose states were compared with the undisturbed run's."""

    def as_json(self) -> dict[str, Any]:
        name, plan = self.played.plan.name, self.played.plan
        found = self.verdict.as_json()
        for violation in found["violations"]:
            violation["where"] = violation["where"] if name == ONLY else f"{name}/{violation['where']}"
        return {
            "name": name,
            **found,
            "run": str(self.played.folder),
            "faults": list(plan.faults),
            "steps": self.steps,
            "compared": self.compared,
            "exit": self.played.code,
            "wall_s": self.played.wall_s,
        }


class Stage:
    """Plays plans below one folder. Main thread only."""

    def __init__(
        self,
        root: Path,
        *,
        warm: Warm,
        console: Console,
        requests: Requests,
        limit_s: float,
        scenario: str = "",
        seed: int = 0,
    ) -> None:
        """``scenario`` and ``seed`` are left in the folders of the runs, beside their limits."""
        self._root = root
        self._scenario = scenario
        self._seed = seed
        self._warm = warm
        self._console = console
        self._requests = requests
        self._limit_s = limit_s

    def play(self, plans: Sequence[Planned], *, compare: bool, tell: Callable[[Played], None]) -> list[Outcome]:
        """All runs, then the verdicts. Ends early when somebody asks to stop."""
        played = []
        for plan in plans:
            if not self._requests.stopping:
                played.append(self._run(plan))
                tell(played[-1])
        stories = [read_story(run.folder) for run in played]
        states = self._states(played, stories) if compare else {}
        outcomes = []
        for run, story in zip(played, stories, strict=True):
            known = states.get(_training(run.plan.config), {})
            steps = story.chain.end.step
            compared = len(known.keys() & {lineage.step for lineage in story.chain.lineages})
            verdict = run.judge(known, scenario=self._scenario, seed=self._seed)
            outcomes.append(Outcome(played=run, verdict=verdict, steps=steps, compared=compared))
        return outcomes

    def _states(self, played: Sequence[Played], stories: Sequence[Story]) -> dict[tuple[int, int], dict[int, str]]:
        """By training: the digests of an undisturbed run that is as long as the longest disturbed one."""
        longest: dict[tuple[int, int], tuple[int, Config]] = {}
        for run, story in zip(played, stories, strict=True):
            key, config = _training(run.plan.config), run.plan.config
            longest[key] = max(longest.get(key, (0, config)), (story.chain.end.step, config), key=lambda pair: pair[0])
        found = {}
        for number, (key, (steps, config)) in enumerate(longest.items()):
            if self._requests.stopping or not steps:
                continue
            name = f"undisturbed-{number}"
            plan = Planned(name=name, config=undisturbed(config), strikes=(), limits=Limits(exit=75), settle=steps)
            story = read_story(self._run(plan).folder)
            found[key] = {line.event["step"]: str(line.event["digest"]) for line in story.of_groups("commit")}
        return found

    def _run(self, plan: Planned) -> Played:
        folder = self._root if plan.name == ONLY else self._root / plan.name
        began, watch = time.monotonic(), _Watch(self._requests, self._limit_s)
        self._console.say(f"{plan.name}: {'; '.join(plan.faults) or 'nothing goes wrong'}")
        lock = FolderLock(RunFolder(folder).lock)
        network = network_of(plan)
        try:
            orders = orders_of(plan, folder, network)
            settle_config(RunFolder(folder), orders.config)
            keep(folder, Kept(scenario=self._scenario, run=plan.name, seed=self._seed, limits=plan.limits))
            code, reason = LocalRun(orders, warm=self._warm, console=self._console, requests=watch).run()
        except ExitRequest as error:
            code, reason = error.code, error.reason
        finally:
            watch.close()
            lock.release()
            if network is not None:
                network.close()
        return Played(
            plan=plan,
            folder=folder,
            code=int(code),
            reason=reason,
            wall_s=time.monotonic() - began,
            in_time=not watch.late,
        )


def network_of(plan: Planned) -> Network | None:
    """The network that a run needs, if it is one that can be made bad. Raises ExitRequest(2) without root for hosts."""
    faults = {strike.action for strike in plan.strikes if strike.target is Target.NETWORK}
    if plan.hosts:
        return Hosts(_groups(plan.config), faults=faults)
    return Proxies() if faults else None


def orders_of(plan: Planned, folder: Path, network: Network | None) -> Orders:
    """What the launch is told."""
    config = plan.config.model_copy(update={"job": plan.config.job.model_copy(update={"dump_folder": str(folder)})})
    bindings = Bindings()
    if isinstance(network, Hosts):
        tolerance = config.fault_tolerance.model_copy(update={"interface": NIC})
        config = config.model_copy(update={"fault_tolerance": tolerance})
        bindings = Bindings(gateway=f"{network.address}:0", page=f"{network.address}:0")
    layouts = layouts_of(config, _groups(config))
    if isinstance(network, Hosts):
        layouts = tuple(dataclasses.replace(layout, netns=network.space(layout.group)) for layout in layouts)
    return Orders(
        config=config,
        layouts=layouts,
        bindings=bindings,
        strikes=plan.strikes,
        away=plan.away,
        network=network,
        settle=plan.settle,
    )


def _groups(config: Config) -> list[str]:
    return [f"g{number}" for number in range(config.launch.groups)]


class _Watch(Requests):
    """The requests of one run: those from outside, and its end after a time. One that does not drain is killed."""

    def __init__(self, outside: Requests, limit_s: float) -> None:
        super().__init__()
        self._outside = outside
        self.late = False
        self._timer = threading.Timer(limit_s, self._over)
        self._timer.daemon = True
        self._timer.start()
        self._kill = threading.Timer(2 * limit_s, self._end)
        self._kill.daemon = True
        self._kill.start()

    @property
    def stopping(self) -> bool:
        return super().stopping or self._outside.stopping

    def wait(self, seconds: float) -> None:
        self.interrupts = max(self.interrupts, self._outside.interrupts)
        super().wait(seconds)

    def close(self) -> None:
        self._timer.cancel()
        self._kill.cancel()

    def _over(self) -> None:
        self.late = self.terminated = True
        self.wake()

    def _end(self) -> None:
        self.interrupts = 2
        self.wake()


def _training(config: Config) -> tuple[int, int]:
    """What runs of one scenario must have in common to have the same states: its other keys are the same."""
    return config.training.steps, global_batch(config)
