"""Phalanx as a job for the benchmarks: launchers, and groups under torchrun, in one run folder; killed and stopped.

Everything is started as a user starts it. A *node* is a launcher with all that is below it: it can be lost as a whole,
so that nobody is left to report. Faults are written into the launcher's log before they are made, as the launcher does
with its own. Used by ``ops.bench.recovery_command``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from configs.run_folder import EventLog, RunFolder
from ops.bench.children import command, command_line, end, last_lines, parent, signal_all, started, tree
from ops.bench.pin import Shares, on_cores
from ops.bench.watch import NotMeasured, Watch, newest_start
from ops.history import Logs


class OurJob:
    """A run while inside. Use from the main thread."""

    def __init__(
        self, *, folder: Path, config: str, keys: Sequence[str], ranks: int, shares: Shares | None = None
    ) -> None:
        """``shares``: the cores of a node that has the name of its group; it keeps to them in all its lives."""
        self.folder = RunFolder(folder)
        self._shares = shares or {}
        self._held = contextlib.ExitStack()
        self._lighthouse = ""
        self._config = config
        self._keys = [*keys, "--job.dump_folder", str(folder)]
        self._ranks = ranks
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.watch = Watch(self.folder.events, failed=self.failed)
        self._faults: EventLog | None = None

    def __enter__(self) -> OurJob:
        self.folder.events.mkdir(parents=True)
        self._faults = EventLog(self.folder.event_log("launcher"), group=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for process in self._nodes.values():
            end(process)
        self._held.close()
        if self._faults is not None:
            self._faults.close()

    # Starting.

    def lighthouse(self) -> None:
        """The coordinator alone, on no node's cores; nodes join it. Call it first."""
        words = ("--state", str(self.folder.lighthouse_state), "--events", str(self.folder.event_log("lighthouse")))
        log = self.folder.root / "lighthouse.log"
        _, self._lighthouse = self._held.enter_context(started("lighthouse", *words, log=log))

    def launch(self, node: str, *options: str) -> None:
        """``phalanx launch`` as node ``node``; returns at once."""
        self._start(node, command("ops", "launch", self._config, *options, *self._keys))

    def join(self, node: str, group: str) -> None:
        """One group under a launcher of its own, as on a machine of its own; returns at once."""
        self.launch(node, "--group", group, "--lighthouse", self._gateway())

    def torchrun(self, node: str, group: str) -> None:
        """One group under plain torchrun; returns at once."""
        run = ("--standalone", "--nnodes", "1", "--nproc-per-node", str(self._ranks), "-m", "trainer")
        words = command("torch.distributed.run", *run, "--job.config_file", self._config, *self._keys)
        self._start(node, words, PHALANX_GROUP=group, PHALANX_LIGHTHOUSE=self._gateway(), OMP_NUM_THREADS="1")

    def _start(self, node: str, words: list[str], **env: str) -> None:
        with self._log_of(node).open("ab") as log, on_cores(self._shares.get(node)):
            self._nodes[node] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C is for the benchmark, which ends it all
            )

    def _gateway(self) -> str:
        if self._lighthouse:
            return self._lighthouse

        def known(logs: Logs) -> str | None:
            del logs
            with contextlib.suppress(FileNotFoundError, ValueError):
                found: str | None = json.loads(self.folder.endpoints.read_text()).get("gateway")
                return found
            return None

        return self.watch.until("the lighthouse", known)

    # Looking.

    def pids(self, node: str) -> list[int]:
        """Everything that lives on a node now, its launcher first."""
        return tree(self._nodes[node].pid)

    def ranks(self, node: str) -> list[int]:
        """The ranks that live on a node now, those that have not told of themselves yet too: what the launcher's warm
        server has forked."""
        _, *below = self.pids(node)
        servers = [pid for pid in below if "multiprocessing.forkserver" in command_line(pid)]
        first = [pid for pid in servers if parent(pid) not in servers]  # a fork has its server's words
        return [pid for pid in below if parent(pid) in first]

    # Faults.

    def kill(self, group: str) -> float:
        """SIGKILL all ranks of a group; the unix time of it."""
        pids = self._ranks_of(group)
        t = self._fault(group, "kill")
        signal_all(pids, signal.SIGKILL)
        return t

    def lose(self, node: str, group: str) -> float:
        """SIGKILL a whole node, the supervisor first: nobody is left to report it."""
        process = self._nodes.pop(node)
        pids = tree(process.pid)
        t = self._fault(group, "kill")
        signal_all(pids, signal.SIGKILL)
        process.wait()
        return t

    def stop_node(self, node: str, group: str) -> tuple[float, list[int]]:
        """SIGSTOP a whole node: (the unix time of it, what was stopped)."""
        pids = tree(self._nodes[node].pid)
        t = self._fault(group, "stop")
        signal_all(pids, signal.SIGSTOP)
        return t, pids

    def stop_rank(self, group: str, rank: int) -> tuple[float, list[int]]:
        """SIGSTOP one rank: (the unix time of it, what was stopped)."""
        pid = self._ranks_of(group)[rank]
        t = self._fault(group, "stop")
        signal_all([pid], signal.SIGSTOP)
        return t, [pid]

    def incarnation(self, group: str) -> int:
        """The newest that has started."""
        event = newest_start(self.watch.look(), group)
        return 0 if event is None else int(event["incarnation"])

    def _ranks_of(self, group: str) -> list[int]:
        event = newest_start(self.watch.look(), group)
        if event is None:
            raise NotMeasured(f"{group} has not started")
        return [int(pid) for pid in event["pids"]]

    def _fault(self, group: str, action: str) -> float:
        assert self._faults is not None
        return float(self._faults("fault", group=group, failpoint="every rank", action=action)["t"])

    def _log_of(self, node: str) -> Path:
        return self.folder.root / f"{node}.log"

    def failed(self) -> str | None:
        """Why the job cannot go on, if so."""
        for node, process in self._nodes.items():
            if process.poll() is not None:
                return f"{node} ended with {process.returncode}: {last_lines(self._log_of(node))}"
        return None


def wake(pids: Sequence[int]) -> None:
    """SIGCONT what was stopped; what has been killed meanwhile is passed over."""
    signal_all(pids, signal.SIGCONT)
