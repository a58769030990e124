"""What is a chaos scenario? A TOML file: which run, what goes wrong, when and with whom, and what must hold then.

Strict and frozen like a config. The files of ``ops/chaos/scenarios`` have names; any other is given by its path.
``ops.chaos.reading`` reads one and lists what is wrong with it, ``ops.chaos.schedule`` makes it a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from configs import failpoints
from configs.fields import Count, Names, Natural, Section, SomeSeconds
from configs.names import nearest
from configs.problems import ConfigError, Problem
from ops.chaos.driver import Target

FOLDER = Path(__file__).parent / "scenarios"
ANY = "any"
"""A group or rank that the seed draws."""

ACTIONS: dict[Target, tuple[str, ...]] = {
    Target.RANK: ("kill", "stop"),
    Target.GROUP: ("kill", "stop", "drain"),
    Target.NODE: ("kill", "drain"),
    Target.LIGHTHOUSE: ("kill", "stop"),
    Target.NETWORK: ("cut", "drop", "delay", "rate"),
}
"""What can be done to whom from outside. At a failpoint (``at``) a rank does to itself whatever failpoints can."""

Steps = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False, min_length=2, max_length=2)]


class Fault(Section):
    """One fault, or a series of them."""

    target: Annotated[Target, Field(strict=False)] = Target.GROUP
    group: str = ANY
    """For the network and the lighthouse: ``any`` means all."""
    rank: int | Literal["any"] = 0
    do: str = "kill"
    seconds: SomeSeconds | None = None
    """How long it lasts: a stop, a bad network, the absence of a node. Without it for good."""
    amount: SomeSeconds | None = None
    """Seconds of a delay, bytes per second of a rate, code of an exit."""

    at: str | None = None
    """A failpoint: the fault happens inside, to ``rank`` of ``group``."""
    part: Natural | None = None
    """Microbatch, bucket or percentage of the failpoint."""
    step: Natural | None = None
    between: Steps | None = None
    """First and last step between which the seed draws one."""
    mtbf_s: SomeSeconds | None = None
    """Mean time between failures: again and again, by an exponential law, from the first commit on."""
    every_s: SomeSeconds | None = None
    """The same, evenly."""
    until_s: SomeSeconds | None = None
    """When the series ends."""
    trace: str | None = None
    """A file of ``seconds,group,join|leave`` lines, beside the scenario."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Seconds of the trace that pass in one."""
    together: bool = False
    """At once with the fault before it, also while its victim is away."""


class Bounds(Section):
    """What must hold beyond what holds for every run. See ops/verdict/limits.py."""

    steps: Count | None = None
    discards: Natural | None = None
    rollbacks: Natural | None = None
    restarts: Natural | None = None
    stall_s: SomeSeconds | None = None
    recovery_s: SomeSeconds | None = None
    all_fire: bool = True
    """Every failpoint strikes. One with a step does not where its group is away at that step."""
    shared_disk: bool = True
    digests: bool = True


class Case(Section):
    """One run of a scenario."""

    name: str
    keys: dict[str, Any] = Field(default_factory=dict)
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = ()
    limits: Bounds | None = None
    settle: Natural | None = None


class Matrix(Section):
    """Every failpoint with every action, a run each."""

    actions: Names
    names: Names = failpoints.NAMES


class Scenario(Section):
    """A chaos scenario."""

    about: str
    """One sentence: what it proves."""
    config: str = "debug"
    """A shipped config, or a file."""
    seed: int = 0
    keys: dict[str, Any] = Field(default_factory=dict)
    """Keys of the config, dotted, that differ."""
    settle: Natural | None = None
    """The run drains once all faults are made and all groups have committed so many steps together since; without it,
    it runs to its last step."""
    hosts: bool = False
    """Every group on a host of its own (a network namespace; needs root), so that the network between groups can be
    made bad. Without it only the paths to the lighthouse can."""
    limit_s: SomeSeconds = 180.0
    """A run that is not over by then is ended, and has failed."""
    compare: bool = False
    """Every confirmed state is compared with that of an undisturbed run of one group."""
    limits: Bounds = Bounds()
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = ()
    cases: Annotated[tuple[Case, ...], Field(strict=False)] = ()
    matrix: Matrix | None = None


def shipped() -> dict[str, Path]:
    """Name -> file of every scenario that comes with the package."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find(source: str) -> Path:
    """The file of a scenario given by path or name. Raises ConfigError with the names there are."""
    path, known = Path(source).expanduser(), shipped()
    if path.is_file():
        return path
    if source in known:
        return known[source]
    expected = f"expected a TOML file or the name of a scenario ({', '.join(known)})"
    raise ConfigError([Problem(where=source, key="(file)", expected=expected, nearest=nearest(path.stem, known))])
