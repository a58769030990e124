"""One run on this machine from its first process to its last: lighthouse, data, groups.

The main thread starts what must outlive every other thread (the kernel ties children to the thread that made them),
then follows the event logs and acts on signals; each group has a supervisor on a thread of its own. How the groups
ended decides the exit code, as a pure function. Called by ``ops.launch.command`` and by the chaos scenarios.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.run_folder import Event, RunFolder
from configs.schema import Config
from configs.shapes import ranks_per_group
from configs.tls import Tls, tls_of
from configs.words import DepartureCause, Exit, ExitRequest
from ops.chaos.driver import ChaosDriver, Strike
from ops.chaos.hands import Hands
from ops.chaos.network import Network
from ops.console import Console
from ops.history import by_number
from ops.launch.coordinator import Bindings, Coordinator
from ops.launch.endpoints import Endpoints
from ops.launch.group import GroupEnd, GroupSupervisor, Surroundings
from ops.launch.life import Layout
from ops.launch.log import LauncherLog
from ops.launch.metrics import LauncherMetrics
from ops.launch.policy import Policy
from ops.launch.ranks import RankFunction, run_trainer
from ops.launch.requests import Requests
from ops.launch.store import Prepare, prepare_first, prepare_store
from ops.launch.warm import Warm
from ops.live import Narrator
from ops.tail import Tails

BURIED_ALIVE = ("hung", "expired")
"""Causes of a departure after which processes may still be there."""
LOOK_S = 0.05
"""How often the event logs are looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orders:
    """What is to be run: the groups of this launcher, under which lighthouse (None: one of its own)."""

    config: Config
    layouts: tuple[Layout, ...]
    lighthouse: str | None = None
    bindings: Bindings = dataclasses.field(default_factory=Bindings)
    strikes: Sequence[Strike] = ()
    away: frozenset[str] = frozenset()
    """Groups whose nodes are not there until a strike lets them join."""
    network: Network | None = None
    """Between the groups and their lighthouse, where a scenario makes it bad."""
    settle: int | None = None
    """The run drains once every fault has been made and all groups have committed so many steps together since."""
    function: RankFunction = run_trainer
    prepare: Prepare = prepare_store


def run_code(ends: Sequence[GroupEnd], requests: Requests) -> tuple[int, str]:
    """The launcher's exit code, from how its groups ended (in the order in which they did), and why."""
    if requests.interrupts:
        return Exit.INTERRUPTED, "interrupted"
    for end in ends:
        if end.ends_run:
            return end.code, f"{end.group}: {end.reason}"
    if ends and all(end.code == Exit.DONE for end in ends):
        return Exit.DONE, "done"
    if requests.terminated:
        return Exit.DRAINED, "drained"
    bad = next((end for end in ends if end.code != Exit.DONE), None)
    return (bad.code, f"{bad.group}: {bad.reason}") if bad else (Exit.DRAINED, "nothing was started")


class LocalRun:
    """A run under way. Use from the main thread."""

    def __init__(self, orders: Orders, *, warm: Warm, console: Console, requests: Requests) -> None:
        config = orders.config
        self._orders = orders
        self._warm = warm
        self._console = console
        self._requests = requests
        self._folder = RunFolder(Path(config.job.dump_folder))
        self._sink = LauncherLog(self._folder.event_log("launcher"), say=console.say)
        self._tails = Tails(self._folder.events, from_end=True)
        self._metrics = LauncherMetrics(run=config.job.name)
        self._endpoints = Endpoints(
            self._folder, run=config.job.name, joins=orders.lighthouse is not None, say=console.say
        )
        self._narrator = Narrator(steps=config.training.steps, every=config.metrics.log_freq)
        self._supervisors: dict[str, GroupSupervisor] = {}
        self._ends: list[GroupEnd] = []
        self._coordinator: Coordinator | None = None
        self._hands = Hands(
            victims=self._supervisors,
            lighthouse=self._signal_lighthouse,
            sink=self._sink,
            network=orders.network,
        )
        self._chaos = ChaosDriver(orders.strikes, strike=self._hands.strike)
        self._ordered: set[str] = set()
        self._tls: Tls | None = None

    def run(self) -> tuple[int, str]:
        """Run to the end. Returns (exit code, reason). Raises ExitRequest when it could not begin."""
        code, reason = int(Exit.CHECK_FAILED), "the launcher failed"
        try:
            code, reason = self._run()
        except ExitRequest as error:
            code, reason = error.code, error.reason
            raise
        finally:
            self._hands.close()
            if self._coordinator is not None:
                self._coordinator.stop()
            self._endpoints.clear()
            self._sink("exit", code=int(code), reason=reason)
            self._sink.close()
        return code, reason

    def _run(self) -> tuple[int, str]:
        self._sink("launch", host=socket.gethostname(), groups=[layout.group for layout in self._orders.layouts])
        self._tls = tls_of(self._orders.config)
        self._warm.start_server()  # its imports take seconds: the rest goes on beside them
        url = self._orders.lighthouse or self._start_lighthouse()
        groups = "-".join(layout.group for layout in self._orders.layouts)
        name = "launcher" if self._orders.lighthouse is None else f"launcher-{groups}"
        self._endpoints.set(name, self._metrics.serve(tls=self._tls))
        prepare_first(
            warm=self._warm,
            config=self._orders.config,
            log_file=self._folder.root / "logs" / "data.log",
            say=self._console.say,
            stopping=lambda: self._requests.stopping,
            prepare=self._orders.prepare,
        )
        if not self._requests.stopping:
            with self._console.bar(self._orders.config.training.steps):
                threads = self._start_groups(url)
                self._follow(threads)
        return run_code(self._ends, self._requests)

    # Starting.

    def _start_lighthouse(self) -> str:
        self._coordinator = Coordinator(
            folder=self._folder,
            bindings=self._orders.bindings,
            min_groups=self._orders.config.fault_tolerance.min_groups,
            sink=self._sink,
            tls=self._tls,
        )
        self._coordinator.start()
        self._endpoints.set("gateway", self._coordinator.gateway)
        self._endpoints.set("lighthouse", self._coordinator.page)
        self._console.say(f"lighthouse at {self._coordinator.gateway}; watch the run at {self._coordinator.page}/")
        return self._coordinator.gateway

    def _start_groups(self, url: str) -> list[threading.Thread]:
        launch = self._orders.config.launch
        around = Surroundings(
            folder=self._folder,
            warm=self._warm,
            function=self._orders.function,
            config=self._orders.config,
            policy=Policy(max_restarts=launch.max_restarts, backoff_s=launch.backoff_s),
            grace_s=launch.kill_grace_s,
            sink=self._sink,
            say=self._console.say,
            leave=leave_over(url, tls=self._tls),
            recovered=self._metrics.restarted,
        )
        threads = []
        for layout in self._orders.layouts:
            path = url if self._orders.network is None else self._orders.network.path(layout.group, url)
            supervisor = GroupSupervisor(dataclasses.replace(layout, lighthouse=path), around)
            supervisor.hold(layout.group in self._orders.away)
            self._supervisors[layout.group] = supervisor
            threads.append(threading.Thread(target=self._supervise, args=(supervisor,), name=layout.group, daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _supervise(self, supervisor: GroupSupervisor) -> None:
        """Body of a group's thread."""
        try:
            end = supervisor.run()
        except Exception as error:  # noqa: BLE001 - the edge of a thread: the run must hear of it
            end = GroupEnd(
                group=supervisor.group, code=Exit.CHECK_FAILED, reason=f"supervisor: {error!r}", ends_run=True
            )
            supervisor.stop()
        self._ends.append(end)
        self._requests.wake()

    # Following.

    def _follow(self, threads: Sequence[threading.Thread]) -> None:
        try:
            while any(thread.is_alive() for thread in threads):
                self._obey()
                self._take_events()
                self._do_faults()
                self._requests.wait(LOOK_S)
        finally:
            self._order("stop", GroupSupervisor.stop)  # nothing to stop, unless this loop failed
            for thread in threads:
                thread.join()
        self._take_events()

    def _obey(self) -> None:
        """Pass on what was asked from outside, and what the end of one group means for the others."""
        requests, ends = self._requests, list(self._ends)
        if requests.stopping and "drain" not in self._ordered:
            source = "sigterm" if requests.terminated else "sigint"
            self._sink("notice", source=source, deadline_s=self._orders.config.launch.kill_grace_s)
            self._metrics.noticed(source)
            self._console.say("asked to stop: all groups drain")
        if requests.stopping or any(end.ends_run for end in ends):
            self._order("drain", GroupSupervisor.drain)
        if requests.interrupts > 1:
            self._order("stop", GroupSupervisor.stop)
        if any(end.code == Exit.DONE for end in ends):
            self._order("done", GroupSupervisor.run_is_done)
        self._keep_lighthouse()

    def _order(self, name: str, request: Callable[[GroupSupervisor], None]) -> None:
        """Pass a request on to all groups, once."""
        if name not in self._ordered:
            self._ordered.add(name)
            for supervisor in self._supervisors.values():
                request(supervisor)

    def _keep_lighthouse(self) -> None:
        news = None if self._coordinator is None else self._coordinator.keep()
        if news is not None:
            self._console.say(news)

    def _take_events(self) -> None:
        for writer, event in self._tails.read():
            self._endpoints.take(writer, event)
            if writer in self._supervisors:
                self._chaos.take(writer, event)
            if writer == "lighthouse" and event.get("cause") in BURIED_ALIVE:
                self._end_buried(event)
            self._tell(writer, event)

    def _end_buried(self, departure: Event) -> None:
        supervisor = self._supervisors.get(str(departure.get("group")))
        if supervisor is not None:
            reason = f"buried by the lighthouse ({departure.get('cause')}: {departure.get('reason')})"
            supervisor.end_incarnation(int(departure.get("incarnation") or 0), reason)

    def _tell(self, writer: str, event: Event) -> None:
        line = self._narrator.take(writer, event)
        if line is not None:
            self._console.say(line.text)
            self._console.progress(line.step, line.short)

    def _do_faults(self) -> None:
        """What a scenario wants done at this moment."""
        self._hands.look()
        self._chaos.look(time.time())
        orders = self._orders
        if orders.settle is not None and self._chaos.settled(
            failpoints=orders.config.chaos.failpoints, groups=len(orders.layouts), rest=orders.settle
        ):
            self._order("drain", GroupSupervisor.drain)

    def _signal_lighthouse(self, number: int) -> bool:
        return self._coordinator is not None and self._coordinator.signal(number)


def leave_over(url: str, *, tls: Tls | None) -> Callable[..., None]:
    """How a supervisor tells the lighthouse of a death: at once, on a thread of its own, and without insisting (the
    kernel has told it too, by closing the group's sockets)."""
    from configs.protocol import Refused, Unreachable
    from lighthouse.client import Control  # heavy: gRPC

    control = Control(url, tls=tls)

    def tell(group: str, life: str, cause: DepartureCause, reason: str) -> None:
        with contextlib.suppress(Refused, Unreachable):
            control.leave(group, None, life=life, cause=cause, reason=reason)

    def leave(*, group: str, life: str, cause: DepartureCause, reason: str) -> None:
        threading.Thread(target=tell, args=(group, life, cause, reason), daemon=True).start()

    return leave


def layouts_of(config: Config, groups: Sequence[str]) -> tuple[Layout, ...]:
    """Which ranks of which groups run on this machine, and on which of its devices: a group that the config counts has
    the place of its number, any other that of its position in ``groups``."""
    ranks = ranks_per_group(config)
    found = []
    for position, group in enumerate(groups):
        number = by_number(group)[1]
        place = number if 0 <= number < config.launch.groups else position
        devices = config.launch.devices[place * ranks : (place + 1) * ranks]
        own = devices or tuple(range(place * ranks, (place + 1) * ranks))
        found.append(Layout(group=group, world=ranks, local_ranks=ranks, devices=own, lighthouse=None))
    return tuple(found)
