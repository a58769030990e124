"""``phalanx bench chaos``: how much work remains under failures, beside stock torchft and native HSDP that restarts?

The same model, batch, processes and failure trace, one system after the other. Each trains undisturbed for a while,
then lives through the trace in the same job; native HSDP, undisturbed and without saves, is measured before and after
them all. Every group keeps to its own share of the cores, so what a dead group leaves idle is lost. The lighthouses
keep to no group's share. The figures are made of the event logs, by ``ops.bench.committed``.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from configs.load import load
from configs.schema import Config
from configs.shapes import ranks_per_group, tokens_per_step
from ops.bench.children import signal_all, workplace
from ops.bench.committed import (
    Lived,
    calm_rate,
    figures,
    our_history,
    save_interval,
    shares_of,
    told_history,
)
from ops.bench.figures import machine
from ops.bench.native import NativeJob, trains
from ops.bench.native_rank import LOG
from ops.bench.ours import OurJob
from ops.bench.pin import Cores, Shares, equal_shares, strays
from ops.bench.plain import LIVES
from ops.bench.recovery import Fault, medians, parts_of
from ops.bench.stock import StockJob, trains_together
from ops.bench.trace import Kill, Played, failure_trace, play
from ops.bench.watch import NotMeasured, Watch, commits_together
from ops.console import Console
from ops.history import Logs, time_of
from ops.result import Result, UsageError

SYSTEMS = ("phalanx", "stock_torchft", "restart")
TOGETHER = 5
"""Steps that all groups commit together before the calm stretch."""
CONFIRMED_S = 2.0
"""How long a job goes on after the trace, so that the last commits of the trace can be confirmed."""
BIRTH_S = 0.5
PROBES = 5
"""Saves that are timed for the choice of the interval."""


class Job(Protocol):
    """What the trace needs of a job."""

    @property
    def watch(self) -> Watch: ...

    def pids(self, group: str, /) -> list[int]: ...

    def ranks(self, group: str, /) -> list[int]: ...

    def failed(self) -> str | None: ...


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx bench chaos``; config keys are taken out before these are parsed."""
    parser.add_argument("--wall-s", type=float, default=600.0, metavar="S", help="length of the trace (default: 600)")
    parser.add_argument("--mtbf-s", type=float, default=15.0, metavar="S", help="one kill in each (default: 15)")
    parser.add_argument("--calm-s", type=float, default=60.0, metavar="S", help="undisturbed before it (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of whom and when (default: 0)")
    parser.add_argument("--groups", type=int, default=2, metavar="N", help="replica groups (default: 2)")
    parser.add_argument("--config", default="bench", metavar="CONFIG", help="what is trained (default: bench)")
    parser.add_argument(
        "--only", metavar="SYSTEM,...", default=",".join(SYSTEMS), help=f"some of {', '.join(SYSTEMS)}; others are null"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the run folders there")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Measure. Raises UsageError, ConfigError."""
    only = options.only.split(",")
    if unknown := [name for name in only if name not in SYSTEMS]:
        raise UsageError(f"--only {','.join(unknown)}: expected some of {', '.join(SYSTEMS)}")
    if not all(0 < value < math.inf for value in (options.wall_s, options.mtbf_s, options.calm_s, options.groups)):
        raise UsageError("--wall-s, --mtbf-s, --calm-s and --groups must be greater than 0, and finite")
    if options.mtbf_s > options.wall_s:
        raise UsageError(
            f"--mtbf-s {options.mtbf_s:g} is longer than --wall-s {options.wall_s:g}: nobody would be killed"
        )
    keys = [*sizes(options.config, options.groups), *options.overrides]
    config = load(options.config, keys)
    before = machine()
    with workplace(options.keep) as folder:
        bench = Bench(folder, options, keys=keys, config=config, console=console)
        try:
            found = bench.measure(only)
        except (NotMeasured, RuntimeError) as error:
            return Result(code=1, text=f"not measured: {error}", data={"error": str(error)})
    words = ["phalanx bench chaos --json", *_given(options, only), *options.overrides]
    data = {**found, "machine": before, "command": " ".join(words)}
    return Result(text=text_of(data), data=data)


def sizes(config: str, groups: int) -> list[str]:
    """The keys of the benchmark. One rank a group: with one core for each, a second would only take turns with it. The
    shipped config's model, with a batch that takes a core about 0.3 s."""
    batch = ("--training.local_batch_size", "4", "--training.global_batch_size", str(4 * groups))
    one = ("--launch.ranks_per_group", "1", "--training.seq_len", "192", *batch)
    return [
        *(one if config == "bench" else ()),
        *("--launch.groups", str(groups), "--training.steps", "1000000", "--checkpoint.enable", "true"),
    ]


def text_of(data: dict[str, Any]) -> str:
    """The figures for people."""
    head = (
        f"one kill every {data['mtbf_s']:g} s for {data['wall_s']:g} s; native HSDP undisturbed: "
        f"{data['native_tokens_per_s']:.0f} tokens/s"
    )
    rows = [
        f"{'':<16}{'committed':>10}{'ceiling':>9}{'of native':>10}{'tokens/s':>10}{'back after':>12}{'rolled back':>13}"
    ]
    for name in SYSTEMS:
        if (found := data[name]) is not None:
            back = found["recovery_s"]
            cells = [_percent(found["committed_ratio"]), _percent(found["ceiling_ratio"])]
            row = f"{name:<16}{cells[0]:>10}{cells[1]:>9}{_percent(found['native_ratio']):>10}"
            row += f"{found['tokens_per_s']:>10.0f}"
            row += f"{'-' if back is None else format(back['median'], '.2f') + ' s':>12}"
            rows.append(row + f"{found['rolled_back_steps']:>13}")
    pinned = "" if data["cores"] else "the groups share the cores: what a dead one leaves idle the others use\n"
    return "\n".join([head, *rows, f"{pinned}all save every {data['save_interval_steps']} steps"])


class Bench:
    """The systems of one command, one after the other; every job lives in a folder of its own."""

    def __init__(
        self, root: Path, options: argparse.Namespace, *, keys: Sequence[str], config: Config, console: Console
    ) -> None:
        self._root = root
        self._options = options
        self._config = config
        self._console = console
        self._groups = tuple(f"g{i}" for i in range(options.groups))
        self._shares = _shares(self._groups)
        self._trace = failure_trace(
            seed=options.seed, mtbf_s=options.mtbf_s, wall_s=options.wall_s, groups=self._groups
        )
        self._keys = keys
        self._ranks = ranks_per_group(config)
        self._parts: dict[str, float] | None = None

    def measure(self, only: Sequence[str]) -> dict[str, Any]:
        """Train undisturbed and through the trace with each system that is asked for."""
        first, save_s = self._undisturbed("native-before", probes=PROBES)
        step_s = tokens_per_step(self._config) / first
        every = save_interval(save_s=save_s, mtbf_s=self._options.mtbf_s, step_s=step_s)
        self._say(f"native HSDP: a step of {step_s:.3f} s; a save takes {save_s:.3f} s, made every {every} steps")
        ways: dict[str, Callable[[], Lived]] = {
            "restart": lambda: self._restart(every),
            "stock_torchft": lambda: self._stock(every),
            "phalanx": lambda: self._ours(every),
        }
        lived = {name: live() for name, live in ways.items() if name in only}
        last, _ = self._undisturbed("native-after", probes=0)
        native = (first + last) / 2
        return {
            **{name: figures(lived[name], native_rate=native) if name in lived else None for name in SYSTEMS},
            "mtbf_s": self._options.mtbf_s,
            "wall_s": self._options.wall_s,
            "calm_s": self._options.calm_s,
            "seed": self._options.seed,
            "trace": [{"t": round(kill.t, 3), "group": kill.group} for kill in self._trace],
            "groups": len(self._groups),
            "ranks_per_group": self._ranks,
            "tokens_per_step": tokens_per_step(self._config),
            "recovery_parts_s": self._parts,
            "native_tokens_per_s": native,
            "native_before_after_tokens_per_s": [first, last],
            "save_s": save_s,
            "save_interval_steps": every,
            "cores": None if self._shares is None else {g: sorted(cores) for g, cores in self._shares.items()},
        }

    # The systems.

    def _undisturbed(self, name: str, *, probes: int) -> tuple[float, float]:
        """(tokens per second of native HSDP without saves, seconds of one save)."""
        with self._native(name, save_every=0, probes=probes) as job:
            begin, end = self._calm(job, lambda logs, after: trains(logs, after=after, count=TOGETHER), share=0.5)
            logs = job.watch.look()
        save_s = next((float(e.get("save_s") or 0.0) for e in logs.of(LOG, "start")), 0.0)
        return calm_rate(told_history(logs)[0], begin, end), save_s

    def _restart(self, every: int) -> Lived:
        with self._native("restart", save_every=every) as job:
            calm, played = self._live(job, lambda logs, after: trains(logs, after=after, count=TOGETHER))
            logs = job.watch.look()
        history, rolled_back = told_history(logs)
        shares = {group: shares_of(logs, group, writer=LOG) for group in self._groups}
        return Lived(calm=calm, played=played, history=history, rolled_back=rolled_back, shares=shares)

    def _stock(self, every: int) -> Lived:
        job = StockJob(
            folder=self._root / "stock",
            config=self._options.config,
            keys=self._keys,
            groups=self._groups,
            ranks=self._ranks,
            shares=self._shares,
            restarts=LIVES,
            save_every=every,
        )
        with job:
            calm, played = self._live(
                job, lambda logs, after: trains_together(logs, self._groups, after=after, count=TOGETHER)
            )
            logs = job.watch.look()
        history, rolled_back = told_history(logs)
        return Lived(calm=calm, played=played, history=history, rolled_back=rolled_back, shares=self._own_shares(logs))

    def _ours(self, every: int) -> Lived:
        job = OurJob(
            folder=self._root / "phalanx",
            config=self._options.config,
            keys=["--checkpoint.interval", str(every), *self._keys],
            ranks=self._ranks,
            shares=self._shares,
        )
        with job:
            job.lighthouse()
            for group in self._groups:
                job.join(group, group)
            calm, played = self._live(
                job, lambda logs, after: commits_together(logs, self._groups, after=after, count=TOGETHER)
            )
            logs = job.watch.look()
        faults = [Fault(group=kill.group, incarnation=_incarnation(logs, kill), t=kill.t) for kill in played.kills]
        parts = [found for fault in faults if (found := parts_of(logs, fault)) is not None]
        self._parts = medians(parts)
        history, rolled_back = our_history(logs, seq_len=self._config.training.seq_len)
        return Lived(calm=calm, played=played, history=history, rolled_back=rolled_back, shares=self._own_shares(logs))

    def _native(self, name: str, *, save_every: int, probes: int = 0) -> NativeJob:
        return NativeJob(
            folder=self._root / name,
            config=self._options.config,
            keys=self._keys,
            groups=self._groups,
            ranks=self._ranks,
            shares=self._shares,
            save_every=save_every,
            probes=probes,
        )

    # What they live through.

    def _live(self, job: Job, trained: Callable[[Logs, float], bool | None]) -> tuple[tuple[float, float], Played]:
        """A calm stretch, then the trace. Nothing is read or asked meanwhile: it would cost cores."""
        calm = self._calm(job, trained)
        played = play(self._trace, wall_s=self._options.wall_s, strike=lambda group: self._strike(job, group))
        time.sleep(CONFIRMED_S)
        self._healthy(job)
        return calm, played

    def _calm(
        self, job: Job, trained: Callable[[Logs, float], bool | None], *, share: float = 1.0
    ) -> tuple[float, float]:
        now = time.time()
        job.watch.until("all groups training", lambda logs: trained(logs, now))
        begin = time.time()
        time.sleep(share * self._options.calm_s)
        self._healthy(job)
        return begin, time.time()

    def _strike(self, job: Job, group: str) -> float:
        self._healthy(job)
        pids, t = job.ranks(group), time.time()
        signal_all(pids, signal.SIGKILL)
        self._say(f"{type(job).__name__}: {group} killed" + ("" if pids else ", which had no process at the moment"))
        return t

    def _healthy(self, job: Job) -> None:
        """Raises NotMeasured when the job has ended, or a thread of it may leave its group's cores."""
        if why := job.failed():
            raise NotMeasured(why)
        for group, cores in (self._shares or {}).items():
            if (found := strays(job.pids(group), cores)) and (found := _still(found, cores)):
                raise NotMeasured(f"{group} is not on its cores {sorted(cores)}: (process, thread) {found}")

    def _own_shares(self, logs: Logs) -> dict[str, Any]:
        return {group: shares_of(logs, group) for group in self._groups}

    def _say(self, text: str) -> None:
        self._console.say(text)


def _shares(groups: Sequence[str]) -> Shares | None:
    cores = sorted(os.sched_getaffinity(0))
    return equal_shares(cores, groups) if len(cores) >= len(groups) else None


def _incarnation(logs: Logs, kill: Kill) -> int:
    """Of the life of a group that was hit."""
    starts = [e for e in logs.of(kill.group, "start") if time_of(e) <= kill.t]
    return int(starts[-1]["incarnation"]) if starts else 0


def _still(found: Sequence[tuple[int, int]], cores: Cores) -> list[tuple[int, int]]:
    """Those that are astray a moment later: a rank that was just born may not have come to pinning itself."""
    time.sleep(BIRTH_S)
    return sorted(set(strays([pid for pid, _ in found], cores)) & set(found))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _given(options: argparse.Namespace, only: Sequence[str]) -> list[str]:
    """The options that differ from their defaults."""
    defaults = {"wall_s": 600.0, "mtbf_s": 15.0, "calm_s": 60.0, "seed": 0, "groups": 2, "config": "bench"}
    given = [
        f"--{name.replace('_', '-')} {_word(getattr(options, name))}"
        for name, value in defaults.items()
        if getattr(options, name) != value
    ]
    return given + ([] if set(only) == set(SYSTEMS) else [f"--only {','.join(only)}"])


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
