"""``phalanx launch``: lighthouse and groups on this machine, supervised, until the run ends."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs.load import classify, examine, load
from configs.names import shipped
from configs.run_folder import RunFolder
from configs.schema import Config
from configs.secret import guarded_address
from configs.shapes import efficiency, global_batch, microbatch_samples, microbatches, ranks_per_group
from configs.timeouts import derive
from configs.words import Exit, ExitRequest
from ops.chaos.demo import UNDISTURBED, strikes, undisturbed
from ops.console import Console
from ops.launch.coordinator import Bindings
from ops.launch.folder import FolderLock, group_lock, settle_config, wait_for_old
from ops.launch.initial import check_initial
from ops.launch.requests import Requests
from ops.launch.run import LocalRun, Orders, layouts_of
from ops.launch.summary import failed, summarise
from ops.launch.warm import Warm
from ops.result import Result, UsageError

BACKENDS = ("local", "slurm", "kubernetes", "skypilot")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx launch``; config keys are taken out before these are parsed."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a TOML file, or the name of a shipped config")
    parser.add_argument("--list", action="store_true", help="name the shipped configs")
    parser.add_argument("--group", metavar="NAME", help="start one group only")
    parser.add_argument("--lighthouse", metavar="URL", help="join a running lighthouse instead of starting one")
    parser.add_argument("--bind", metavar="HOST:PORT", help="address of the lighthouse (default: a free loopback port)")
    parser.add_argument("--http", metavar="HOST:PORT", help="address of its page (default: a free loopback port)")
    parser.add_argument("--backend", choices=BACKENDS, default="local", help="where groups run (default: local)")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would run and what each key means; touch nothing"
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Do it."""
    if options.list:
        return _list()
    if options.config is None:
        raise UsageError("launch needs a CONFIG: a TOML file or one of " + ", ".join(shipped()))
    if options.dry_run:
        return _dry_run(options)
    if options.backend != "local":
        raise UsageError(f"--backend {options.backend} does not exist yet; only local does")
    config = load(options.config, options.overrides)
    if config.launch.nodes_per_group > 1:
        raise UsageError("launch.nodes_per_group > 1: start `phalanx group` on each node; launch is for one machine")
    return _launch(config, options, console)


def _launch(config: Config, options: argparse.Namespace, console: Console) -> Result:
    guarded_address(config.fault_tolerance.interface)  # before anything starts: one error, not one of each rank
    config, root = _at_home(config)
    if options.lighthouse is None:  # who joins a run takes the state of those that live
        check_initial(config, RunFolder(root))
    groups = (options.group,) if options.group else tuple(f"g{i}" for i in range(config.launch.groups))
    orders = Orders(
        config=config,
        layouts=layouts_of(config, groups),
        lighthouse=options.lighthouse,
        bindings=Bindings(gateway=options.bind or "127.0.0.1:0", page=options.http or "127.0.0.1:0"),
        strikes=strikes(config),
    )
    since, requests, warm = time.time(), Requests(), Warm(threads=config.launch.threads_per_rank)
    compare = config.chaos.scenario == "demo" and options.group is None and options.lighthouse is None
    other: Path | None = None
    try:
        with requests.heard():
            code, reason = _run_in_folder(orders, warm=warm, console=console, requests=requests)
            if code == Exit.DONE and compare:
                console.say("the same run once more, undisturbed, one group alone")
                again = undisturbed(config)
                other = root / UNDISTURBED
                alone = Orders(config=again, layouts=layouts_of(again, ("g0",)))
                code, reason = _run_in_folder(alone, warm=warm, console=console, requests=requests)
                if code != Exit.DONE:  # its state is not the final one: there is nothing to compare
                    other, reason = None, f"done; the undisturbed run was not finished ({reason}), start again to do so"
    except ExitRequest as error:
        return failed(error.code, error.reason, run=root)
    return summarise(root, code=code, reason=reason, since=since, undisturbed=other)


def _run_in_folder(orders: Orders, *, warm: Warm, console: Console, requests: Requests) -> tuple[int, str]:
    """Take the run folder, then run."""
    warm.start_server()  # its imports take seconds: the checks go on beside them
    folder = RunFolder(Path(orders.config.job.dump_folder))
    groups = [layout.group for layout in orders.layouts]
    joins = orders.lighthouse is not None
    with _locked(folder, groups, joins=joins):
        wait_for_old(folder, say=console.say, groups=frozenset(groups) if joins else None)
        if not joins or not folder.config.exists():  # a run that is joined keeps its own
            for warning in settle_config(folder, orders.config):
                console.say(f"warning: {warning}")
        console.say(_heading(orders))
        return LocalRun(orders, warm=warm, console=console, requests=requests).run()


@contextlib.contextmanager
def _locked(folder: RunFolder, groups: Sequence[str], *, joins: bool) -> Iterator[None]:
    """Hold the folder (unless another launcher's run is joined) and the groups."""
    paths = [*([] if joins else [folder.lock]), *(group_lock(folder, group) for group in groups)]
    with contextlib.ExitStack() as held:
        for path in paths:
            held.callback(FolderLock(path).release)
        yield


def _at_home(config: Config) -> tuple[Config, Path]:
    """The config with ``~`` in its run folder replaced."""
    root = Path(config.job.dump_folder).expanduser()
    return config.model_copy(update={"job": config.job.model_copy(update={"dump_folder": str(root)})}), root


def _heading(orders: Orders) -> str:
    config = orders.config
    groups = ", ".join(layout.group for layout in orders.layouts)
    most = range(1, config.launch.groups + 1)
    filled = ", ".join(f"{efficiency(config, k):.0%} with {k}" for k in most)
    return "\n".join(
        [
            f"{config.job.name} in {config.job.dump_folder}: {groups} x {ranks_per_group(config)} ranks, "
            f"{config.training.steps} steps",
            f"global batch {global_batch(config)} sequences = {microbatches(config)} microbatches of "
            f"{microbatch_samples(config)}; groups' time filled: {filled}",
            "time limits:",
            *(f"  {row}" for row in derive(config).table().splitlines()),
        ]
    )


def _list() -> Result:
    found = {name: _first_comment(path) for name, path in shipped().items()}
    width = max(map(len, found), default=0)
    text = "\n".join(f"{name:<{width}}  {about}" for name, about in found.items())
    return Result(text=text, data={"configs": found})


def _first_comment(path: Path) -> str:
    first = path.read_text().partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _dry_run(options: argparse.Namespace) -> Result:
    """Each key that was given, and what would run. Raises ConfigError for unknown keys and bad values."""
    keys = classify(options.config, options.overrides)
    width = max((len(key) for key, _ in keys), default=0)
    # A key of a later feature is refused only where it would act.
    refused = {problem.key: problem.expected for problem in examine(options.config, options.overrides).unsupported}
    lines = [f"{key:<{width}}  {status}{', and needed: refused' if key in refused else ''}" for key, status in keys]
    plan = [] if refused else _plan(load(options.config, options.overrides), options)
    lines += [f"would not start: {key}: {why}" for key, why in refused.items()]
    lines += plan
    data = {"keys": dict(keys), "would_start": not refused, "plan": plan, "backend": options.backend}
    return Result(text="\n".join(lines), data=data)


def _plan(config: Config, options: argparse.Namespace) -> list[str]:
    groups = [options.group] if options.group else [f"g{i}" for i in range(config.launch.groups)]
    where = (
        f"joins {options.lighthouse}"
        if options.lighthouse
        else f"lighthouse on {options.bind or 'a free loopback port'}"
    )
    kills = [f"at step {s.step} SIGKILL of {s.group}" for s in strikes(config)]
    return [
        f"run folder {config.job.dump_folder}, backend {options.backend}, {where}",
        *(
            f"{layout.group}: ranks 0-{layout.world - 1} on devices {layout.devices}"
            for layout in layouts_of(config, groups)
        ),
        *kills,
    ]
