"""``phalanx bench recovery``: what a death, a hang and a lost node cost, beside stock torchft and torchrun.

Two groups of two ranks train the same model on the same batch, with Phalanx and with stock torchft in turn, in blocks
of kills: SIGKILL of one group, chosen at random, at a random moment of its step (seeded). Then, with one group on a
node of its own: the loss of the node, SIGSTOP of the node and of one rank, and restarts under plain torchrun. The
figures come from the event logs, by ``ops.bench.recovery``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.load import load
from configs.shapes import ranks_per_group
from ops.bench import recovery, stock
from ops.bench.children import workplace
from ops.bench.figures import machine, spread_text
from ops.bench.ours import OurJob, wake
from ops.bench.recovery import Fault, Measured
from ops.bench.watch import NotMeasured, Watch, commits_together, share_of_successor, step_seconds
from ops.console import Console
from ops.recovery import stall_of
from ops.result import Result, UsageError

GROUPS = ("g0", "g1")
BLOCKS = 2
TOGETHER = 3
"""Steps that all groups commit together before the next fault."""
KEYS = (
    *("--training.steps", "1000000"),
    *("--launch.groups", str(len(GROUPS))),
    *("--fault_tolerance.collective_timeout_s", "60"),
)
SECTIONS = ("kills", "stock", "node", "hangs", "cold")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx bench recovery``; config keys are taken out before these are parsed."""
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="of a whole group, each side (default: 10)")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="of every other fault (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of whom and when (default: 0)")
    parser.add_argument("--config", default="debug", metavar="CONFIG", help="what is trained (default: debug)")
    parser.add_argument(
        "--only",
        metavar="PART,...",
        default=",".join(SECTIONS),
        help=f"some of {', '.join(SECTIONS)}; the figures of others are null",
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Measure. Raises UsageError, ConfigError."""
    only = options.only.split(",")
    if unknown := [name for name in only if name not in SECTIONS]:
        raise UsageError(f"--only {','.join(unknown)}: expected some of {', '.join(SECTIONS)}")
    if min(options.kills, options.repeats) < 1:
        raise UsageError("--kills and --repeats must be at least 1")
    keys = [*KEYS, *options.overrides]
    ranks = ranks_per_group(load(options.config, keys))
    before = machine()
    with workplace() as folder:
        bench = Bench(folder, options, keys=keys, ranks=ranks, console=console)
        try:
            found = bench.measure(only)
        except (NotMeasured, RuntimeError) as error:
            return Result(code=1, text=f"not measured: {error}", data={"error": str(error)})
    words = ["phalanx bench recovery --json", *_given(options, only), *options.overrides]
    data = {**recovery.figures(found), "machine": before, "command": " ".join(words)}
    return Result(text=text_of(data), data=data)


def blocks(kills: int) -> list[int]:
    """How many kills each block makes: the two systems take turns, block by block."""
    count = min(BLOCKS, kills)
    return [kills // count + (block < kills % count) for block in range(count)]


def text_of(data: dict[str, Any]) -> str:
    """The figures for people, in seconds."""
    rows = (
        ("stall", data["stall_s"]),
        ("  stock torchft", data["stock"]["stall_s"]),
        ("recovery", data["replica_recovery_s"]),
        ("  stock torchft", data["stock"]["replica_recovery_s"]),
        ("  torchrun, cold", data["cold_torchrun_recovery_s"]),
        ("stall of a lost node", data["node_loss_stall_s"]),
        ("stall of a hang", data["hang_stall_s"]),
    )
    parts = data["recovery_parts_s"] or {}
    return "\n".join(
        [
            *(f"{name:<22}{spread_text(found)}" for name, found in rows),
            f"{'parts of a recovery':<22}" + (", ".join(f"{n} {s:.3f}" for n, s in parts.items()) or "not measured"),
            f"{'stock over ours':<22}stall {_times(data['stall_ratio'])}, recovery {_times(data['recovery_ratio'])}",
        ]
    )


class Bench:
    """The faults of one command. Every job lives in a folder of its own and is gone at the end of its part."""

    def __init__(
        self, root: Path, options: argparse.Namespace, *, keys: Sequence[str], ranks: int, console: Console
    ) -> None:
        self._root = root
        self._config = options.config
        self._kills = options.kills
        self._repeats = options.repeats
        self._seed = options.seed
        self._keys = keys
        self._ranks = ranks
        self._console = console
        self._found = Measured()

    def measure(self, only: Sequence[str]) -> Measured:
        """Make the faults of the parts that are asked for."""
        for block, kills in enumerate(blocks(self._kills)):
            if "kills" in only:
                self._our_kills(block, kills)
            if "stock" in only:
                self._stock_kills(block, kills)
        if {"node", "hangs", "cold"} & set(only):
            with self._job("node") as job:
                job.launch("a", "--group", "g0")
                if {"node", "hangs"} & set(only):
                    job.join("b", "g1")
                    self._node(job, only)
                if "cold" in only:
                    self._cold(job)
        return self._found

    def _our_kills(self, block: int, kills: int) -> None:
        rng = random.Random(f"{self._seed}/{block}")
        with self._job(f"ours-{block}") as job:
            job.launch("a")
            for _ in range(kills):
                self._settle(job.watch, rng)
                group = rng.choice(GROUPS)
                fault = Fault(group=group, incarnation=job.incarnation(group), t=job.kill(group))
                self._back(job.watch, fault)
                self._settle(job.watch)
                logs = job.watch.logs
                stall, back = stall_of(logs, group=group, t=fault.t), recovery.recovery_of(logs, fault)
                self._found.ours.add(stall=stall, recovery=back, parts=recovery.parts_of(logs, fault))
                self._say(f"{group} killed", stall, back)
            self._found.step_s = step_seconds(job.watch.logs, GROUPS[0])

    def _stock_kills(self, block: int, kills: int) -> None:
        rng = random.Random(f"{self._seed}/{block}")
        folder = self._root / f"stock-{block}"
        stock_job = stock.StockJob(
            folder=folder, config=self._config, keys=self._keys, groups=GROUPS, ranks=self._ranks
        )
        with stock_job as job:
            for _ in range(kills):
                self._settle(job.watch, rng, stock_groups=True)
                group = rng.choice(GROUPS)
                fault = Fault(group=group, incarnation=job.life(group), t=job.kill(group))
                job.start(group)
                self._back(job.watch, fault)
                self._settle(job.watch, stock_groups=True)
                logs = job.watch.logs
                stall, back = stock.stall_of(logs, group=group, t=fault.t), recovery.recovery_of(logs, fault)
                self._found.stock.add(stall=stall, recovery=back)
                self._say(f"stock torchft: {group} killed", stall, back)
            self._found.stock_step_s = step_seconds(job.watch.logs, GROUPS[0])

    def _node(self, job: OurJob, only: Sequence[str]) -> None:
        """Faults of g1, which has node b for itself."""
        rng = random.Random(f"{self._seed}/node")
        hung: list[Fault] = []
        for _ in range(self._repeats if "node" in only else 0):
            self._settle(job.watch, rng)
            fault = Fault(group="g1", incarnation=job.incarnation("g1"), t=job.lose("b", "g1"))
            job.join("b", "g1")
            self._back(job.watch, fault)
            self._settle(job.watch)
            stall, back = stall_of(job.watch.logs, group="g1", t=fault.t), recovery.recovery_of(job.watch.logs, fault)
            self._found.node.add(stall=stall, recovery=back)
            self._say("a node lost", stall, back)
        for repeat in range(2 * self._repeats if "hangs" in only else 0):
            self._settle(job.watch, rng)
            hung.append(self._hang(job, whole=repeat % 2 == 0, rank=repeat // 2 % self._ranks))
        if "hangs" in only:
            self._settle(job.watch)
            self._found.confirmed_after_burial = recovery.confirmed_after_burial(job.watch.logs, hung)
        job.lose("b", "g1")

    def _hang(self, job: OurJob, *, whole: bool, rank: int) -> Fault:
        """Stop node b, or one rank of its group, until the lighthouse has buried it."""
        incarnation = job.incarnation("g1")
        t, stopped = job.stop_node("b", "g1") if whole else job.stop_rank("g1", rank)
        fault = Fault(group="g1", incarnation=incarnation, t=t)
        try:
            job.watch.until("the burial of what hangs", lambda logs: recovery.burial_of(logs, fault))
            stall = job.watch.until("the survivor", lambda logs: stall_of(logs, group="g1", t=t))
        finally:
            wake(stopped)
        costs = self._found.hung_group if whole else self._found.hung_rank
        costs.add(stall=stall, recovery=None)
        self._back(job.watch, fault)
        self._say("a whole node stopped" if whole else f"rank {rank} stopped", stall, None)
        return fault

    def _cold(self, job: OurJob) -> None:
        """Restarts of g1 under plain torchrun."""
        rng = random.Random(f"{self._seed}/cold")
        job.torchrun("c", "g1")
        for _ in range(self._repeats):
            self._settle(job.watch, rng)
            fault = Fault(group="g1", incarnation=job.incarnation("g1"), t=job.lose("c", "g1"))
            job.torchrun("c", "g1")
            self._back(job.watch, fault)
            back = recovery.recovery_of(job.watch.logs, fault)
            self._found.cold.add(stall=None, recovery=back)
            self._say("under torchrun: killed", None, back)

    # Waiting.

    @contextlib.contextmanager
    def _job(self, name: str) -> Iterator[OurJob]:
        with OurJob(folder=self._root / name, config=self._config, keys=self._keys, ranks=self._ranks) as job:
            yield job

    def _settle(self, watch: Watch, rng: random.Random | None = None, *, stock_groups: bool = False) -> None:
        """Until all groups train together again; with ``rng`` on to a random moment of a step."""
        now = time.time()
        seen = stock.trains_together if stock_groups else commits_together
        watch.until("all groups training", lambda logs: seen(logs, GROUPS, after=now, count=TOGETHER))
        if rng is not None:
            time.sleep(rng.random() * step_seconds(watch.logs, GROUPS[0]))

    def _back(self, watch: Watch, fault: Fault) -> None:
        watch.until(f"{fault.group} to be back", lambda logs: share_of_successor(logs, fault.group, fault.incarnation))

    def _say(self, what: str, stall: float | None, back: float | None) -> None:
        told = [] if stall is None else [f"stall {stall:.3f} s"]
        told += [] if back is None else [f"back after {back:.2f} s"]
        self._console.say(f"{what}: {', '.join(told)}")


def _given(options: argparse.Namespace, only: Sequence[str]) -> list[str]:
    """The options that differ from their defaults."""
    defaults = {"kills": 10, "repeats": 3, "seed": 0, "config": "debug"}
    given = [
        f"--{name} {getattr(options, name)}" for name, value in defaults.items() if getattr(options, name) != value
    ]
    return given + ([] if set(only) == set(SECTIONS) else [f"--only {','.join(only)}"])


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
