"""``phalanx group``: the ranks of one group on this node, for schedulers.

A scheduler replaces what it loses, so nothing is restarted here: the command ends with the group, with the code of rank
0. On several nodes it runs on each, and they meet where torchrun's flags say.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

from configs.load import load
from configs.run_folder import EventSink, RunFolder
from configs.schema import Config
from configs.secret import guarded_address
from configs.shapes import ranks_per_group
from configs.tls import tls_of
from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.launch.folder import FolderLock, group_lock, settle_config, wait_for_old
from ops.launch.group import GroupEnd, GroupSupervisor, Surroundings
from ops.launch.life import Layout
from ops.launch.policy import Policy
from ops.launch.ranks import RankFunction, run_trainer
from ops.launch.requests import Requests
from ops.launch.run import leave_over
from ops.launch.store import Prepare, prepare_first, prepare_store
from ops.launch.summary import failed
from ops.launch.warm import Warm
from ops.result import Result, UsageError

LOOK_S = 0.5


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``phalanx group``; config keys are taken out before these are parsed."""
    env = os.environ
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a shipped config")
    parser.add_argument(
        "--group", metavar="NAME", default=env.get("PHALANX_GROUP", "g0"), help="default: PHALANX_GROUP"
    )
    parser.add_argument(
        "--lighthouse", metavar="URL", default=env.get("PHALANX_LIGHTHOUSE"), help="default: PHALANX_LIGHTHOUSE"
    )
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes of the group (default: 1)")
    parser.add_argument("--node-rank", type=int, default=0, metavar="R", help="number of this node (default: 0)")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where rank 0 listens, with more than one node")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Do it. Raises UsageError without a lighthouse: two groups that forgot it would train apart, each with its own."""
    if not options.lighthouse:
        raise UsageError(
            "PHALANX_LIGHTHOUSE (or --lighthouse URL) must name the run's lighthouse, see `phalanx lighthouse`; "
            "for one group alone use `phalanx launch CONFIG --launch.groups 1`"
        )
    return run_group(load(options.config, options.overrides), options, console)


def run_group(
    config: Config,
    options: argparse.Namespace,
    console: Console,
    *,
    function: RankFunction = run_trainer,
    prepare: Prepare = prepare_store,
) -> Result:
    """Run this node's ranks until the group ends. ``function`` and ``prepare`` are what the children do."""
    guarded_address(config.fault_tolerance.interface)
    layout = layout_of(config, options)
    folder = RunFolder(Path(config.job.dump_folder).expanduser())
    warm, requests = Warm(threads=config.launch.threads_per_rank), Requests()
    warm.start_server()
    try:
        with requests.heard():
            lock = FolderLock(group_lock(folder, f"{layout.group}.{options.node_rank}"))
            wait_for_old(folder, say=console.say, groups=frozenset({layout.group}))
            for warning in settle_config(folder, config):
                console.say(f"warning: {warning}")
            prepare_first(
                warm=warm,
                config=config,
                log_file=folder.root / "logs" / f"data-{layout.group}-{options.node_rank}.log",
                say=console.say,
                stopping=lambda: requests.stopping,
                prepare=prepare,
            )
            console.say(
                f"{layout.group}: {layout.local_ranks} ranks; events in {folder.event_log(layout.group)}, "
                f"what they print in {folder.root / 'logs' / layout.group}"
            )
            end = _supervise(layout, config, folder, warm=warm, console=console, requests=requests, function=function)
            lock.release()
    except ExitRequest as error:
        return failed(error.code, error.reason, run=folder.root)
    own = end.code if end.lead_code is None else end.lead_code
    code = Exit.INTERRUPTED if requests.interrupts else own
    data = {"group": end.group, "reason": end.reason}
    return Result(code=int(code), text=f"{end.group}: {end.reason}", data=data)


def layout_of(config: Config, options: argparse.Namespace) -> Layout:
    """Which ranks run on this node. Raises UsageError for numbers that do not fit."""
    world = ranks_per_group(config)
    nodes, node = options.nnodes, options.node_rank
    if nodes < 1 or not 0 <= node < nodes:
        raise UsageError(f"--node-rank {node} is not one of --nnodes {nodes} (0 to {nodes - 1})")
    if world % nodes:
        raise UsageError(f"{world} ranks of a group do not divide among --nnodes {nodes}")
    if nodes > 1 and not options.rdzv_endpoint:
        raise UsageError("--rdzv-endpoint HOST:PORT is needed with more than one node")
    local = world // nodes
    devices = config.launch.devices[:local] or tuple(range(local))
    return Layout(
        group=options.group,
        world=world,
        first_rank=node * local,
        local_ranks=local,
        devices=devices,
        lighthouse=options.lighthouse,
        meet=_host_port(options.rdzv_endpoint) if options.rdzv_endpoint else None,
    )


def _supervise(
    layout: Layout,
    config: Config,
    folder: RunFolder,
    *,
    warm: Warm,
    console: Console,
    requests: Requests,
    function: RankFunction,
) -> GroupEnd:
    around = Surroundings(
        folder=folder,
        warm=warm,
        function=function,
        config=config,
        policy=Policy(max_restarts=0),
        grace_s=config.launch.kill_grace_s,
        sink=_no_log,
        say=console.say,
        leave=leave_over(layout.lighthouse, tls=tls_of(config)) if layout.lighthouse else _no_log,
    )
    supervisor = GroupSupervisor(layout, around)
    ends: list[GroupEnd] = []

    def body() -> None:
        try:
            ends.append(supervisor.run())
        finally:
            requests.wake()

    thread = threading.Thread(target=body, name=layout.group, daemon=True)
    if requests.stopping:
        supervisor.drain()
    thread.start()
    while thread.is_alive():
        requests.wait(LOOK_S)
        if requests.stopping:
            supervisor.drain()
        if requests.interrupts > 1:
            supervisor.stop()
    if not ends:
        raise ExitRequest(Exit.CHECK_FAILED, "the group's supervisor failed")
    return ends[0]


_no_log: EventSink = lambda *names, **fields: None  # noqa: E731 - the group's own log says it; launchers have one


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise UsageError(f"--rdzv-endpoint {text}: expected HOST:PORT")
    return host, int(port)
