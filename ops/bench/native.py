"""Native HSDP as a job: one torchrun for the ranks of all groups; whoever dies, all start again from the last save.

That is torchrun's own elasticity: its agent lives on, ends the fellows of a rank that died, and starts all ranks anew.
Used by the benchmark of committed work under failures, for both the undisturbed reference and the restarted one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from configs.run_folder import RunFolder
from ops.bench.children import command, end, environment, last_lines, tree
from ops.bench.native_rank import LOG, PROBES
from ops.bench.pin import Shares, words_of
from ops.bench.plain import LIVES, SAVE_EVERY
from ops.bench.watch import Watch
from ops.history import Logs, time_of


class NativeJob:
    """A job of native HSDP while inside. Use from the main thread."""

    def __init__(
        self,
        *,
        folder: Path,
        config: str,
        keys: Sequence[str],
        groups: Sequence[str],
        ranks: int,
        shares: Shares | None,
        save_every: int,
        probes: int = 0,
    ) -> None:
        """``probes``: saves that are timed before training; ``save_s`` of the first ``start`` tells."""
        self.folder = RunFolder(folder)
        self.groups = tuple(groups)
        self._ranks = ranks
        self._words = command(
            "torch.distributed.run",
            *("--standalone", "--nnodes", "1", "--nproc-per-node", str(ranks * len(groups))),
            *("--max-restarts", str(LIVES)),
            *("-m", "ops.bench.pin", words_of(shares, groups), str(ranks), "ops.bench.native_rank"),
            *(config, *keys, "--job.dump_folder", str(folder)),
        )
        self._env = {"OMP_NUM_THREADS": "1", SAVE_EVERY: str(save_every), PROBES: str(probes)}
        self._process: subprocess.Popen[bytes] | None = None
        self.watch = Watch(self.folder.events, failed=self.failed)

    def __enter__(self) -> NativeJob:
        self.folder.events.mkdir(parents=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env},
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._process is not None:
            end(self._process)

    def pids(self, group: str) -> list[int]:
        """The processes of a group that live now: its ranks."""
        assert self._process is not None
        place = self.groups.index(group)
        found = []
        for pid in tree(self._process.pid)[1:]:
            rank = environment(pid).get("LOCAL_RANK")
            if rank is not None and int(rank) // self._ranks == place:
                found.append(pid)
        return found

    def ranks(self, group: str) -> list[int]:
        """The same: their agent is nobody's."""
        return self.pids(group)

    def failed(self) -> str | None:
        """Why the job cannot go on, if so."""
        if self._process is not None and self._process.poll() is not None:
            return f"native HSDP ended with {self._process.returncode}: {last_lines(self._log)}"
        return None

    @property
    def _log(self) -> Path:
        return self.folder.root / "native.log"


def trains(logs: Logs, *, after: float, count: int) -> bool | None:
    """True once ``count`` steps were committed after a moment."""
    return len([e for e in logs.of(LOG, "commit") if time_of(e) > after]) >= count or None
