"""``phalanx bench checkpoint``: what does a checkpoint every step cost a run?

One run, in windows of a few steps that take turns: nothing saved, every step saved in the background, every step saved
by torch's own ``dcp.save`` while training waits (``ops.bench.windows``). The time of a step is the time between two
commits, as group g0 wrote them; what a step's save costs falls into the time that follows its commit.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.run_folder import Event, RunFolder, read_events
from ops.bench.children import command, end, last_lines, workplace
from ops.bench.figures import machine, spread, spread_text
from ops.bench.windows import CYCLE, WAYS, WINDOW, measured, way_of
from ops.console import Console
from ops.result import Result, UsageError

KEYS = (
    *("--checkpoint.enable", "true"),
    *("--checkpoint.interval", "1"),
    *("--checkpoint.async_mode", "async"),
    *("--experimental.custom_import", "ops.bench.save_windows"),
    *("--chaos.scenario", "none"),
    *("--debug.digest_interval", "0"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx bench checkpoint``; config keys are taken out before these are parsed."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", default="demo", help="what is run (default: demo)")
    parser.add_argument(
        "--cycles",
        type=int,
        default=10,
        metavar="N",
        help=f"windows of each kind, {WINDOW} steps each (default: %(default)s)",
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Measure. Raises UsageError."""
    if options.cycles < 1:
        raise UsageError("--cycles must be at least 1")
    before = machine()
    with workplace() as folder:
        steps = CYCLE * (options.cycles + 1) + 1
        words = [options.config, *options.overrides, *KEYS, "--training.steps", str(steps)]
        console.say(f"{steps} steps of {options.config}, in windows of {WINDOW}")
        if failure := _launch(words, folder / "run", folder / "launch.log"):
            return Result(code=1, text=f"not measured: {failure}", data={"error": failure})
        logs = sorted(RunFolder(folder / "run").events.glob("g*.jsonl"))
        found = figures([event for path in logs for event in read_events(path)])
    said = ["phalanx bench checkpoint", options.config, f"--cycles {options.cycles}", *options.overrides, "--json"]
    data = {**found, "machine": before, "command": " ".join(said)}
    return Result(text=text_of(data), data=data)


def step_seconds(events: Sequence[Event]) -> dict[str, dict[int, list[float]]]:
    """By way and cycle: seconds from each measured commit to the next one."""
    found: dict[str, dict[int, list[float]]] = {way: {} for way in WAYS}
    for step, seconds in _timed(events):
        found[way_of(step)].setdefault(step // CYCLE, []).append(seconds)
    return found


def figures(events: Sequence[Event]) -> dict[str, Any]:
    """Medians against medians; the ratios of single cycles beside them tell how far they can be trusted."""
    times = step_seconds(events)
    spreads = {way: spread([each for cycle in cycles.values() for each in cycle]) for way, cycles in times.items()}
    turns = {step for step, _ in _timed(events) if way_of(step) == "with"}
    saves = [e for e in events if e["event"] == "checkpoint" and e["step"] in turns]
    saved = [e for e in saves if e["status"] == "saved"]
    return {
        "step_s": spreads["without"],
        "step_with_save_s": spreads["with"],
        "blocking_step_s": spreads["blocking"],
        "overhead_ratio": _overhead(spreads["with"], spreads["without"]),
        "blocking_overhead_ratio": _overhead(spreads["blocking"], spreads["without"]),
        "overhead_ratio_by_cycle": _by_cycle(times["with"], times["without"]),
        "blocking_overhead_ratio_by_cycle": _by_cycle(times["blocking"], times["without"]),
        "effective_interval_steps": len(turns) / len(saved) if saved else None,
        "skipped_turns": sum(e["status"] == "skipped" for e in saves),
        "failed_turns": sum(e["status"] == "failed" for e in saves),
        "stall_s": spread([float(e["stall_seconds"]) for e in saved]),
        "save_s": spread([float(e["seconds"]) for e in saved]),
        "bytes": max((int(e["bytes"]) for e in saved), default=None),
    }


def text_of(data: dict[str, Any]) -> str:
    """The figures for people."""

    def cost(name: str) -> str:
        ratio, single = data[name], data[f"{name}_by_cycle"]
        if ratio is None or single is None:
            return "not measured"
        return f"{ratio:+.1%} (single cycles {single['min']:+.1%} to {single['max']:+.1%})"

    interval = data["effective_interval_steps"]
    saved = "nothing was saved" if interval is None else f"one in {interval:.2f} steps saved"
    plain, ours, blocking, waits, takes = (
        spread_text(data[name]) for name in ("step_s", "step_with_save_s", "blocking_step_s", "stall_s", "save_s")
    )
    return "\n".join(
        [
            f"nothing saved        {plain} s a step",
            f"saved in background  {ours} s, {cost('overhead_ratio')}; {saved}, {data['skipped_turns']} turns skipped",
            f"blocking dcp.save    {blocking} s, {cost('blocking_overhead_ratio')}",
            f"training waits       {waits} s a save; a save takes {takes} s",
        ]
    )


def _timed(events: Iterable[Event]) -> Iterator[tuple[int, float]]:
    """(step, seconds to the next commit) of every step that counts."""
    commits = sorted((e["step"], e["t"]) for e in events if e["event"] == "commit" and e["group"] == "g0")
    for (step, t), (after, later) in itertools.pairwise(commits):
        if after == step + 1 and measured(step):
            yield step, later - t


def _overhead(ours: dict[str, Any] | None, plain: dict[str, Any] | None) -> float | None:
    if ours is None or plain is None or plain["median"] <= 0:
        return None
    return float(ours["median"] / plain["median"] - 1)


def _by_cycle(ours: dict[int, list[float]], plain: dict[int, list[float]]) -> dict[str, Any] | None:
    both = sorted(ours.keys() & plain.keys())
    return spread([statistics.median(ours[cycle]) / statistics.median(plain[cycle]) - 1 for cycle in both])


def _launch(words: Sequence[str], folder: Path, log: Path) -> str:
    """One run to its end: why it failed, or nothing."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            command("ops", "launch", *words, "--job.dump_folder", str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends it all
        )
    try:
        code = process.wait()
    finally:
        end(process)
    return f"launch ended with {code}: {last_lines(log)}" if code else ""
