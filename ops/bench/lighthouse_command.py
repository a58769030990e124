"""``phalanx bench lighthouse``: quorums of many simulated groups at one gateway, beside the bare engine.

Gateway and engine are processes of their own, asked in turn by the same client (``ops.bench.swarm``): windows of some
seconds with one quorum a second each. Then two groups alone, quorum by quorum in turn, for what the gateway adds to a
step. The processor share is that of the lighthouse's process while it is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops.bench.children import cpu_s, started, workplace
from ops.bench.figures import machine, percentile, spread, spread_text, tail
from ops.bench.swarm import Swarm, SwarmError, engine_swarm, gateway_swarm
from ops.console import Console
from ops.result import Result, UsageError

PERIOD_S = 1.0
WINDOWS = 4
WARM_UP = 2
"""Quorums of each before anything is measured: the first makes members and engines."""
PAIRS = 200
PAIR_PAUSE_S = 0.005


@dataclasses.dataclass(kw_only=True)
class Load:
    """What one side took: seconds of each group's quorums, of each round, and of the processor."""

    quorum_s: list[float] = dataclasses.field(default_factory=list)
    rounds_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def cpu_share(self) -> float | None:
        return self.cpu_s / self.wall_s if self.wall_s else None

    @property
    def per_second(self) -> float | None:
        return len(self.rounds_s) / self.wall_s if self.wall_s else None


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx bench lighthouse``."""
    parser.add_argument("--groups", type=int, default=300, metavar="N", help="simulated groups (default: 300)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="for each of gateway and engine (default: 20)"
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Measure. Raises UsageError."""
    if options.groups < 1 or options.seconds <= 0:
        raise UsageError("--groups and --seconds must be greater than 0")
    before = machine()
    with workplace() as folder:
        try:
            measured = asyncio.run(_measure(folder, options.groups, options.seconds, console))
        except (SwarmError, RuntimeError) as error:
            return Result(code=1, text=f"not measured: {error}", data={"error": str(error)})
    data = {
        "groups": options.groups,
        **measured,
        "machine": before,
        "command": f"phalanx bench lighthouse --groups {options.groups} --seconds {options.seconds:g} --json",
    }
    return Result(text=text_of(data), data=data)


def figures(gateway: Load, engine: Load) -> dict[str, Any]:
    """The figures of many groups."""
    return {
        "quorum_s": tail(gateway.quorum_s),
        "engine_quorum_s": tail(engine.quorum_s),
        "cpu_share": gateway.cpu_share,
        "engine_cpu_share": engine.cpu_share,
        "quorums_per_s": gateway.per_second,
        "engine_quorums_per_s": engine.per_second,
        "round_s": spread(gateway.rounds_s),
        "engine_round_s": spread(engine.rounds_s),
    }


def extra_figures(gateway: Sequence[float], engine: Sequence[float]) -> dict[str, Any]:
    """What the gateway adds to a quorum of two groups: pairs that were measured one after the other."""
    extra = [ours - bare for ours, bare in zip(gateway, engine, strict=True)]
    return {
        "gateway_extra_s": spread(extra),
        "two_groups_quorum_s": spread(gateway),
        "two_groups_engine_quorum_s": spread(engine),
    }


def text_of(data: dict[str, Any]) -> str:
    """The figures for people."""
    quorum, engine = data["quorum_s"], data["engine_quorum_s"]
    return "\n".join(
        [
            f"{data['groups']} groups, {data['quorums_per_s']:.2f} quorums a second",
            f"  gateway     p50 {quorum['p50']:.3f} s, p99 {quorum['p99']:.3f} s, {data['cpu_share']:.2f} of a core",
            f"  bare engine p50 {engine['p50']:.3f} s, p99 {engine['p99']:.3f} s, "
            f"{data['engine_cpu_share']:.2f} of a core",
            f"  two groups: the gateway adds {spread_text(data['gateway_extra_s'])} s to a quorum",
        ]
    )


async def _measure(folder: Path, groups: int, seconds: float, console: Console) -> dict[str, Any]:
    many = await _many(folder / "many", groups, seconds, console)
    return {**figures(*many), **await _two(folder / "two", console)}


async def _many(folder: Path, groups: int, seconds: float, console: Console) -> tuple[Load, Load]:
    loads = Load(), Load()
    window_s = seconds / WINDOWS
    folder.mkdir()
    with _gateway(folder) as (gateway, url), _engine(folder, groups) as (engine, engine_url):
        async with gateway_swarm(url, groups) as ours, engine_swarm(engine_url, groups) as bare:
            for _ in range(WARM_UP):
                await ours.round()
                await bare.round()
            for window in range(WINDOWS):
                await _window(loads[0], ours, pid=gateway, seconds=window_s)
                await _window(loads[1], bare, pid=engine, seconds=window_s)
                took = [percentile(load.quorum_s, 99) for load in loads]
                console.say(f"window {window + 1}/{WINDOWS}: p99 {took[0]:.3f} s, bare engine {took[1]:.3f} s so far")
    return loads


async def _window(load: Load, swarm: Swarm, *, pid: int, seconds: float) -> None:
    """Quorums one a period (or one after the other where one takes longer) for so many seconds."""
    cpu, begin = cpu_s([pid]), time.perf_counter()
    due = begin
    while due < begin + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        load.quorum_s += await swarm.round()
        load.rounds_s.append(time.perf_counter() - asked)
        due = max(due + PERIOD_S, time.perf_counter())
    await asyncio.sleep(max(0.0, begin + seconds - time.perf_counter()))
    load.cpu_s += cpu_s([pid]) - cpu
    load.wall_s += time.perf_counter() - begin


async def _two(folder: Path, console: Console) -> dict[str, Any]:
    """Two groups, one quorum after the other, at the gateway and at the engine in turn."""
    gateway: list[float] = []
    engine: list[float] = []
    folder.mkdir()
    with _gateway(folder) as (_, url), _engine(folder, 2) as (_, engine_url):
        async with gateway_swarm(url, 2) as ours, engine_swarm(engine_url, 2) as bare:
            for number in range(PAIRS + WARM_UP):
                pair = max(await ours.round()), max(await bare.round())
                if number >= WARM_UP:
                    gateway.append(pair[0])
                    engine.append(pair[1])
                await asyncio.sleep(PAIR_PAUSE_S)
    console.say(f"two groups: {PAIRS} pairs of quorums")
    return extra_figures(gateway, engine)


def _gateway(folder: Path) -> Any:
    """A lighthouse as ``phalanx launch`` starts it: with a state file and an event log."""
    state, events = str(folder / "lighthouse.state"), str(folder / "lighthouse.jsonl")
    return started("lighthouse", "--state", state, "--events", events, log=folder / "lighthouse.log")


def _engine(folder: Path, groups: int) -> Any:
    return started("ops.bench.engine", str(groups), log=folder / "engine.log", env={"RUST_LOG": "warn"})
