"""Stock torchft as a job: its lighthouse, its groups under torchrun, killed and started again; the baseline.

``StockJob`` starts and kills; ``stall_of`` says from its logs what a kill cost, in the same terms as for Phalanx. Each
group is one torchrun, as in torchft's README; a group that was killed is started again at once, which is the best that
a scheduler could do. Used by the benchmarks of recovery and of committed work under failures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from configs.run_folder import EventLog, RunFolder
from ops.bench.children import command, end, environment, last_lines, signal_all, started, tree
from ops.bench.pin import ANY, Shares, on_cores
from ops.bench.plain import SAVE_EVERY
from ops.bench.stock_rank import GROUP, LIFE
from ops.bench.watch import NotMeasured, Watch, newest_start
from ops.history import Logs, time_of

FAULTS = "launcher"
"""The log in which kills are written, as a launcher of ours would."""


class StockJob:
    """A job of stock torchft while inside. Use from the main thread."""

    def __init__(
        self,
        *,
        folder: Path,
        config: str,
        keys: Sequence[str],
        groups: Sequence[str],
        ranks: int,
        shares: Shares | None = None,
        restarts: int = 0,
        save_every: int = 0,
    ) -> None:
        """``config`` and ``keys`` are those of ``phalanx launch``; ``job.dump_folder`` becomes ``folder``. ``shares``:
        the cores each group keeps to; ``restarts``: how often torchrun itself starts ranks that died again."""
        self.folder = RunFolder(folder)
        self.groups = tuple(groups)
        self._ranks = ranks
        self._shares = shares or {}
        self._restarts = restarts
        self._save_every = save_every
        self._arguments = [config, *keys, "--job.dump_folder", str(folder)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives: dict[str, int] = {}
        self._held = contextlib.ExitStack()
        self._url = ""
        self.watch = Watch(self.folder.events, failed=self.failed)
        self._faults: EventLog | None = None

    def __enter__(self) -> StockJob:
        self.folder.events.mkdir(parents=True)
        self._faults = EventLog(self.folder.event_log(FAULTS), group=None)
        self._held.callback(self._faults.close)
        log = self.folder.root / "lighthouse.log"
        try:
            lighthouse = started("ops.bench.engine", "1", log=log, env={"RUST_LOG": "warn"})
            _, self._url = self._held.enter_context(lighthouse)
            for group in self.groups:
                self.start(group)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for group in self._processes:
            self._end(group)
        self._held.close()

    def start(self, group: str) -> None:
        """Start a group's torchrun; returns at once."""
        self._lives[group] = life = self._lives.get(group, 0) + 1
        with self._log_of(group).open("ab") as log, on_cores(self._shares.get(group)):
            self._processes[group] = subprocess.Popen(
                command(
                    "torch.distributed.run",
                    *("--standalone", "--nnodes", "1", "--nproc-per-node", str(self._ranks)),
                    *("--max-restarts", str(self._restarts)),
                    *("-m", "ops.bench.pin", ANY, str(self._ranks), "ops.bench.stock_rank", *self._arguments),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "TORCHFT_LIGHTHOUSE": self._url,
                    "OMP_NUM_THREADS": "1",
                    "RUST_LOG": "warn",
                    GROUP: group,
                    LIFE: str(life),
                    SAVE_EVERY: str(self._save_every),
                },
                start_new_session=True,
            )

    def life(self, group: str) -> int:
        """Which life of a group runs."""
        return self._lives[group]

    def pids(self, group: str) -> list[int]:
        """Everything of a group that lives now, its torchrun first."""
        return tree(self._processes[group].pid)

    def ranks(self, group: str) -> list[int]:
        """The ranks of a group that live now: the children of its torchrun that have a rank."""
        return [pid for pid in self.pids(group)[1:] if "LOCAL_RANK" in environment(pid)]

    def kill(self, group: str) -> float:
        """SIGKILL all ranks of a group, and its torchrun, at once; the unix time of it."""
        event = newest_start(self.watch.look(), group)
        if event is None or self._faults is None:
            raise NotMeasured(f"{group} has not started")
        t = float(self._faults("fault", group=group, failpoint="every rank", action="kill")["t"])
        signal_all((*event["pids"], self._processes[group].pid), signal.SIGKILL)
        self._end(group)
        return t

    def _end(self, group: str) -> None:
        end(self._processes[group])

    def _log_of(self, group: str) -> Path:
        return self.folder.root / f"{group}.log"

    def failed(self) -> str | None:
        """Why the job cannot go on, if so."""
        for group, process in self._processes.items():
            if process.poll() is not None:
                return f"{group} of stock torchft ended with {process.returncode}: {last_lines(self._log_of(group))}"
        return None


def stall_of(logs: Logs, *, group: str, t: float) -> float | None:
    """Longest wait of a survivor for an attempt without ``group``, killed at ``t``: from the kill, or from when it
    needed the dead group if that is later."""
    found = (_wait_of(logs, survivor, t) for survivor in logs.groups if survivor != group)
    return max((wait for wait in found if wait is not None), default=None)


def trains_together(logs: Logs, groups: tuple[str, ...], *, after: float, count: int) -> bool | None:
    """True once every group has committed ``count`` steps after a moment, with a share, and all of them in it."""
    for group in groups:
        shared = [e for e in logs.of(group, "commit") if time_of(e) > after and e.get("participants") == len(groups)]
        if len([e for e in shared if e.get("shares")]) < count:
            return None
    return True


def _wait_of(logs: Logs, survivor: str, t: float) -> float | None:
    ahead = [e for e in logs.of(survivor, "commit") if float(e.get("quorum_t") or 0.0) > t]
    if not ahead:
        return None
    begins = float(ahead[0]["quorum_t"])
    failed = [e for e in logs.of(survivor, "discard") if t < time_of(e) <= time_of(ahead[0])]
    needed = [float(e["reduce_t"]) for e in failed if e.get("reduce_t")]
    return begins - max(t, min(needed, default=float(ahead[0]["began_t"])))
