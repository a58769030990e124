"""Groups and a lighthouse that the test alone starts, stops, wakes and replaces: nothing here restarts anything.

A launcher would end a buried incarnation at once, and so nobody would see what it does when it wakes. Here it wakes.
Everything runs as in a launch (ranks from the warm server, a supervisor for each group); a test waits for events.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from configs.run_folder import Event, EventLog, RunFolder
from configs.schema import Config
from lighthouse.client import Control
from ops.launch.group import GroupEnd, GroupSupervisor, Surroundings
from ops.launch.policy import Policy
from ops.launch.ranks import RankFunction, run_trainer
from ops.launch.run import layouts_of
from ops.launch.store import prepare_first
from ops.tail import Tail
from tests.support.lighthouse import start_process
from tests.support.rig import Rig, Run

T = TypeVar("T")
LIMIT_S = 120.0
STEPS = 3000
"""More than any of these runs makes; the learning rate depends on it, so all have the same."""


class Field:
    """One run, from a lighthouse and no group to the end of ``with``."""

    def __init__(self, rig: Rig, name: str, *, groups: int = 2, ranks: int = 1, **keys: object) -> None:
        keys = {
            "training__global_batch_size": 4,
            "training__seq_len": 8,
            "fault_tolerance__failure_detection_s": 1.0,
            "fault_tolerance__collective_timeout_s": 60,
            **keys,
        }
        self._rig = rig
        self._config = functools.partial(rig.config, name, groups=groups, ranks=ranks, steps=STEPS, **keys)
        self.config = self._config()
        self.folder = RunFolder(Path(self.config.job.dump_folder))
        prepare_first(
            warm=rig.warm,
            config=self.config,
            log_file=self.folder.root / "data.log",
            say=lambda text: None,
            stopping=lambda: False,
        )
        self._sink = EventLog(self.folder.event_log("launcher"), group=None)
        self._supervisors: dict[str, list[tuple[GroupSupervisor, threading.Thread]]] = {}
        self._logs: dict[str, tuple[Tail, list[Event]]] = {}
        self._controls: list[Control] = []
        self.ends: list[GroupEnd] = []
        self.url = ""
        self.lighthouse: subprocess.Popen[str]
        self.light()

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in [self.lighthouse.pid, *(pid for group in self._supervisors for pid in self.pids(group))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for supervisor, thread in self._all():
            supervisor.stop()
            thread.join(LIMIT_S)
        for control in self._controls:
            control.close()
        self.kill_lighthouse()

    # What happens.

    def light(self, folder: Path | None = None) -> None:
        """Start a lighthouse on the run's address, with the run's state or that in another ``folder``."""
        bind = self.url.removeprefix("http://") or "127.0.0.1:0"
        self.lighthouse, url = start_process(folder or self.folder.events, bind=bind)
        assert url, "the lighthouse did not start"
        self.url = url

    def kill_lighthouse(self) -> None:
        self.lighthouse.kill()
        self.lighthouse.communicate()

    def start(
        self,
        *groups: str,
        points: Sequence[str] = (),
        function: RankFunction = run_trainer,
        config: Config | None = None,
        **keys: object,
    ) -> None:
        """A life of each group, with failpoints and keys of its own, or a config of its own."""
        keys |= {"chaos__failpoints": points} if points else {}
        config = config or (self._config(**keys) if keys else self.config)
        for layout in layouts_of(config, groups):
            around = Surroundings(
                folder=self.folder,
                warm=self._rig.warm,
                function=function,
                config=config,
                policy=Policy(max_restarts=0),
                grace_s=20.0,
                sink=self._sink,
                say=lambda text: None,
                leave=lambda **fields: None,  # only closed sockets and silence tell the lighthouse
            )
            supervisor = GroupSupervisor(dataclasses.replace(layout, lighthouse=self.url), around)
            thread = threading.Thread(target=self._supervise, args=(supervisor,), daemon=True)
            self._supervisors.setdefault(layout.group, []).append((supervisor, thread))
            thread.start()

    def signal(self, group: str, number: int, *, ranks: Sequence[int] = ()) -> None:
        """Send a signal to the newest incarnation of a group, or to some of its ranks."""
        pids = self.pids(group)
        for rank in ranks or range(len(pids)):
            os.kill(pids[rank], number)

    def kill(self, group: str) -> None:
        self.signal(group, signal.SIGKILL)

    def drain(self) -> Run:
        """End the run in order. Returns what is left of it."""
        for supervisor, _ in self._all():
            supervisor.drain()
        for _, thread in self._all():
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a group did not drain"
        return Run(0, "", self.folder, "")

    # What is seen.

    def events(self, writer: str, *names: str) -> list[Event]:
        if writer not in self._logs:
            self._logs[writer] = (Tail(self.folder.event_log(writer)), [])
        tail, seen = self._logs[writer]
        seen.extend(tail.read())
        return [e for e in seen if not names or e["event"] in names]

    def wait(self, writer: str, name: str, wanted: Callable[[Event], bool] = lambda event: True) -> Event:
        """The first such event, past or to come."""
        return wait_until(
            lambda: next((e for e in self.events(writer, name) if wanted(e)), None), f"{writer}: {name}", self.said
        )

    def control(self) -> Control:
        """A client of the lighthouse, closed with the field."""
        self._controls.append(Control(self.url))
        return self._controls[-1]

    def wait_commit(self, group: str, *, after: float = 0.0, step: int = 0, alone: bool | None = None) -> Event:
        """The first commit of the group after a moment (unix seconds), of that step or a later one."""
        return self.wait(
            group,
            "commit",
            lambda e: e["t"] > after and e["step"] >= step and alone in (None, e["participants"] == [group]),
        )

    def wait_gone(self, group: str, incarnation: int = 1) -> Event:
        """The departure of an incarnation, as the lighthouse tells it."""
        return self.wait("lighthouse", "departure", lambda e: (e["group"], e["incarnation"]) == (group, incarnation))

    def wait_exit(self, group: str, incarnation: int = 1) -> Event:
        """The end of an incarnation, as its supervisor tells it: all its processes are gone."""
        return self.wait("launcher", "exit", lambda e: (e["group"], e["incarnation"]) == (group, incarnation))

    def pids(self, group: str) -> list[int]:
        """Of the newest incarnation that has begun."""
        starts = self.events(group, "start")
        return list(starts[-1]["pids"]) if starts else []

    def said(self) -> str:
        """The end of every log, for a test that fails."""
        logs = sorted(self.folder.root.glob("logs/*/*/rank*.log"))
        parts = [f"{path}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-8:]) for path in logs]
        tail = [str(event) for event in self.events("lighthouse")[-12:]]
        return "\n".join(parts + tail)

    def _all(self) -> list[tuple[GroupSupervisor, threading.Thread]]:
        return [pair for pairs in self._supervisors.values() for pair in pairs]

    def _supervise(self, supervisor: GroupSupervisor) -> None:
        self.ends.append(supervisor.run())


def wait_until(look: Callable[[], T | None], what: str, said: Callable[[], str] = str) -> T:
    """For what is seen only by looking."""
    end = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < end, f"never happened: {what}\n{said()}"
        time.sleep(0.01)
    return found


def one_history(run: Run, undisturbed: dict[int, object] | None = None) -> None:
    """The confirmed steps are one chain, each sample used once, all groups agree, and it is the undisturbed run's."""
    ledger = run.ledger
    assert (ledger.missing, ledger.duplicated, ledger.order_matches) == (0, 0, True), ledger
    steps = [lineage.step for lineage in run.chain]
    assert steps == list(range(1, len(steps) + 1)), "one unbroken chain"
    digests = run.series("digest")
    if undisturbed is not None:
        shared = digests.keys() & undisturbed.keys()
        assert {s: digests[s] for s in shared} == {s: undisturbed[s] for s in shared}
    ids: dict[int, set[tuple[str, ...]]] = {}
    for writer in ("lighthouse", *run.logs.groups):
        for event in run.events(writer, "quorum"):
            ids.setdefault(event["quorum_id"], set()).add(tuple(event["participants"]))
    assert all(len(sets) == 1 for sets in ids.values()), "a quorum id has one participant set"
    attempts = [e["attempt"] for e in run.events("lighthouse", "quorum")]
    assert attempts == sorted(set(attempts)), "ids strictly increase"


def never_confirmed(run: Run, group: str, incarnation: int, *, after: float) -> None:
    """Nothing that this incarnation committed after a moment is part of the history."""
    confirmed = {str(lineage) for lineage in run.chain}
    late = [e for e in run.events(group, "commit") if e["incarnation"] == incarnation and e["t"] > after]
    assert not [e["lineage"] for e in late if e["lineage"] in confirmed], late
