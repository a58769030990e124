"""When does a state reach the disk? Staged at the commit, written in the background, published once it is confirmed.

Training pays for the staging copy only. A turn that finds the previous save running is skipped and counted; a save that
fails is counted, reported through the sink, and does not stop training, except the final one. All ranks of the group
call the same methods in the same order; whether a turn is saved is agreed among them on the worker thread, over a
process group that nothing else uses, so training never waits for a slow rank's disk. Rank 0 publishes: a folder gets
its name by one rename after ``confirm``, and only then may older ones go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from checkpointing import folder as folders
from checkpointing.errors import CheckpointError
from checkpointing.fellows import Fellows
from checkpointing.places import FolderPlace, Keep, Place
from checkpointing.server import nothing
from checkpointing.staging import Staged, Staging
from checkpointing.state import Clocks
from checkpointing.storage import FolderWriter, SaveFailed
from configs.run_folder import EventSink
from configs.words import Lineage

_log = logging.getLogger(__name__)
Mode = Literal["async", "async_with_pinned_mem", "disabled"]
BUSY = "the previous save is still running"


@dataclasses.dataclass
class _Turn:
    """One state that it was this group's turn to save, as this rank sees it."""

    clocks: Clocks
    staged: Staged | None
    """None when this rank has nothing to write."""
    failure: str
    """Why it was not staged."""
    stall: float
    final: bool
    done: Future[str]
    """Empty text, or why it failed."""


@dataclasses.dataclass
class _Written:
    """A folder that waits for its confirmation. Rank 0 only."""

    unfinished: folders.Unfinished
    bytes: int
    seconds: float
    stall: float
    checksum: int
    """Of what was staged."""


class Checkpointer:
    """The writer of one rank. Methods are for the training thread, in the same order on all ranks of the group.

    ``group`` is a gloo process group of all ranks that only this object uses (None: one rank). ``writer`` is
    ``group.incarnation``. ``sink`` gets ``checkpoint`` events on rank 0, from the worker thread. ``keep_latest_k`` 0
    keeps all; ``keep_every`` keeps every step that it divides. ``place`` is where checkpoints go that are written in
    ``folder``; None: there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        group: dist.ProcessGroup | None,
        writer: str,
        keep_latest_k: int = 5,
        keep_every: int | None = None,
        async_mode: Mode = "async",
        secret: bytes | None = None,
        sink: EventSink = nothing,
        failpoint: Callable[..., None] = nothing,
        place: Place | None = None,
    ) -> None:
        self._folder = folder
        self._fellows = Fellows(group)
        self._writer = writer
        self._keep = Keep(keep_latest_k, keep_every)
        self._place = FolderPlace(folder, writer=writer, secret=secret) if place is None else place
        self._blocking = async_mode == "disabled"
        self._secret = secret
        self._sink = sink
        self._failpoint = failpoint
        self._saves = FolderWriter(folder, fellows=self._fellows, writer=writer, secret=secret, failpoint=failpoint)
        self._staging = Staging(pinned=async_mode == "async_with_pinned_mem")
        self._jobs: queue.SimpleQueue[_Turn | Lineage | list[Lineage] | Future[None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        """The staging buffers are free."""
        self._idle.set()
        self._lock = threading.Lock()
        self._verdicts: dict[Lineage, bool | None] = {}
        """Of each state on its way to the disk: confirmed, orphaned (False), or not known yet."""
        self._agreed: dict[Lineage, int] = {}
        """Checksums that holders have compared: of the newest state, and of those on their way to the disk."""
        self._written: dict[Lineage, _Written] = {}
        self._broken = ""
        self._fences: list[Lineage] = []
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
        self.counts = {"saved": 0, "skipped": 0, "failed": 0}
        """Turns by outcome. ``saved`` and what fails or is dropped after the writing are counted on rank 0 only."""
        self.last_saved: Lineage | None = None
        """Rank 0: the newest one that this object published."""

    def start(self) -> list[tuple[str, str]]:
        """Remove what dead writers left (rank 0) and begin: (name, reason) of each leftover. An unusable folder is no
        error here: saves will fail and say so."""
        removed: list[tuple[str, str]] = []
        if self._fellows.rank == 0:
            with contextlib.suppress(OSError):
                removed = list(folders.clean_up(self._folder, writer=self._writer))
        for name, reason in removed:
            _log.warning("removed %s: %s", name, reason)
        self._thread.start()
        return removed

    def maybe_save(self, *, tensors: Mapping[str, torch.Tensor], clocks: Clocks, turn: bool) -> float:
        """Save this state if it is this group's ``turn``. Call after the commit, before anything writes the tensors.

        Returns the seconds that training waited. Never raises for a save that fails.
        """
        if not turn:
            return 0.0
        started = time.monotonic()
        job = self._stage(tensors, clocks, final=False) if self._idle.is_set() else _not_staged(clocks, BUSY)
        job.stall = time.monotonic() - started
        with self._lock:
            self._verdicts[clocks.lineage] = None
        self._jobs.put(job)
        if self._blocking:
            job.done.result()
        return time.monotonic() - started

    def confirm(self, lineage: Lineage, *, checksum: int | None = None) -> None:
        """``lineage`` is confirmed: publish it if this group wrote it, and wrote what its holders have (``checksum``,
        where they compared). Older ones that were never confirmed are dropped. Cheap."""
        with self._lock:
            new = {} if checksum is None else {lineage: checksum}
            self._agreed = {mine: known for mine, known in self._agreed.items() if mine in self._verdicts} | new
            for mine, verdict in self._verdicts.items():
                if verdict is None and mine.step <= lineage.step:
                    self._verdicts[mine] = mine == lineage
            waiting = bool(self._verdicts)
        if waiting:
            self._jobs.put(lineage)

    def orphan(self, lineage: Lineage) -> None:
        """``lineage`` will never be confirmed: what was written of it is removed."""
        with self._lock:
            if lineage in self._verdicts:
                self._verdicts[lineage] = False
        self._jobs.put(lineage)

    def fence(self, fences: Sequence[Lineage]) -> None:
        """Set aside what lies behind a rollback: on a disk of this group's own nobody else does. Cheap; call at every
        quorum with the fences of all rollbacks."""
        if list(fences) != self._fences and self._fellows.rank == 0:
            self._fences = list(fences)
            self._jobs.put(self._fences)

    def finish(self, *, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None:
        """Save and publish this confirmed state, and wait for it. Does nothing if it is published already.

        Collective. Raises CheckpointError (exit 6) on every rank when it cannot be saved.
        """
        if not self._thread.is_alive():
            raise CheckpointError(f"the state of step {clocks.step} could not be saved: the writer is closed")
        self._idle.wait()
        job = self._stage(tensors, clocks, final=True)
        self._jobs.put(job)
        if failure := job.done.result():
            raise CheckpointError(f"the state of step {clocks.step} could not be saved in {self._folder}: {failure}")

    def wait(self, *, limit_s: float | None = None) -> bool:
        """Wait until everything asked for so far is done: False after ``limit_s`` seconds."""
        mark: Future[None] = Future()
        self._jobs.put(mark)
        return bool(futures.wait([mark], limit_s).done)

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Take no more turns and wait up to ``wait_s`` for what is running. True if nothing was left undone."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _stage(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks, *, final: bool) -> _Turn:
        self._idle.clear()
        try:
            self._failpoint("save_stage", step=clocks.step)
            staged = self._staging.copy(tensors)
        except (RuntimeError, OSError) as error:  # out of memory, or a failpoint: the fellows hear of it on the worker
            self._idle.set()
            return dataclasses.replace(_not_staged(clocks, f"not staged: {error}"), final=final)
        return _Turn(clocks, staged, "", 0.0, final, Future())

    # ---- on the worker thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Lineage):
                self._settle()
                continue
            if isinstance(job, list):
                self._cut_off(job)
                continue
            if isinstance(job, Future):
                job.set_result(None)
                continue
            try:
                failure = self._broken or self._take(job)
            except Exception as error:  # noqa: BLE001 - a thread's edge: the process group is broken, training is not
                failure = self._broken = f"saving is over for this incarnation: {type(error).__name__}: {error}"
            if self._broken:
                self._report("failed", job.clocks.lineage, stall=job.stall, reason=failure)
            if job.staged is not None:
                job.staged = None
                self._idle.set()
            with self._lock:
                if job.clocks.lineage not in self._written:
                    self._verdicts.pop(job.clocks.lineage, None)
            self._settle()
            job.done.set_result(failure)
        for written in self._written.values():  # never confirmed while this incarnation lived
            written.unfinished.remove()

    def _take(self, job: _Turn) -> str:
        """One turn, on all ranks together. Returns why it failed, the same text everywhere, or nothing."""
        lineage = job.clocks.lineage
        seen = self._fellows.all((lineage, job.failure, job.final))
        if any(entry[0] != lineage or entry[2] != job.final for entry in seen):
            raise AssertionError(f"ranks save different states: {seen}")
        if job.final and self._fellows.first(self._already(lineage)):
            return ""
        if failures := [f"rank {rank}: {failure}" for rank, (_, failure, _) in enumerate(seen) if failure]:
            skipped = all(failure in ("", BUSY) for _, failure, _ in seen)
            self._report(
                "skipped" if skipped else "failed", lineage, stall=job.stall, reason=BUSY if skipped else failures[0]
            )
            return failures[0]
        started = time.monotonic()
        try:
            unfinished, size, checksum = self._saves.write(job.staged or Staged({}), job.clocks)
        except SaveFailed as error:
            self._report("failed", lineage, seconds=time.monotonic() - started, stall=job.stall, reason=str(error))
            return str(error)
        if unfinished is not None:
            self._written[lineage] = _Written(unfinished, size, time.monotonic() - started, job.stall, checksum)
        return self._fellows.first(self._publish(lineage) if unfinished is not None else "") if job.final else ""

    def _already(self, lineage: Lineage) -> bool:
        """Rank 0: this state is on disk under its name, or waits for its confirmation, which the final save is."""
        if self._fellows.rank:
            return False
        if lineage in self._written:
            return not self._publish(lineage)
        return self._place.holds(lineage)

    def _settle(self) -> None:
        """Publish or drop what waits, by what is known of it now."""
        for lineage in sorted(self._written):
            with self._lock:
                verdict = self._verdicts.get(lineage)
            if verdict is None:
                continue
            if verdict:
                self._publish(lineage)
            else:
                written = self._written.pop(lineage)
                written.unfinished.remove()
                self._report("skipped", lineage, written=written, reason="orphaned: it was never confirmed")
            with self._lock:
                self._verdicts.pop(lineage, None)

    def _cut_off(self, fences: list[Lineage]) -> None:
        with contextlib.suppress(OSError):  # what stays the lighthouse refuses all the same
            for name, reason in self._place.cut_off(fences):
                _log.warning("set aside %s: %s", name, reason)

    def _publish(self, lineage: Lineage) -> str:
        """Rank 0: rename, make durable, then let older ones go. Returns why it failed, or nothing."""
        written = self._written.pop(lineage)
        try:
            self._failpoint("save_rename", step=lineage.step)
            with self._lock:
                agreed = self._agreed.get(lineage, written.checksum)
            if written.checksum != agreed:
                raise CheckpointError(f"what was staged has the checksum {written.checksum}, the state {agreed}")
            if self._place.holds(lineage):
                written.unfinished.remove()
                self._report("skipped", lineage, written=written, reason="another group has saved it")
                return ""
            self._place.publish(written.unfinished)
        except Exception as error:  # noqa: BLE001 - on rank 0 alone: its fellows wait for the answer
            written.unfinished.remove()
            self._report("failed", lineage, written=written, reason=f"not published: {error}")
            return f"not published: {error}"
        self.last_saved = lineage
        self._report("saved", lineage, written=written)
        with contextlib.suppress(OSError):  # what could not be deleted now is tried again at the next save
            self._place.let_go(lineage, self._keep)
        return ""

    def _report(
        self,
        status: str,
        lineage: Lineage,
        *,
        written: _Written | None = None,
        seconds: float = 0.0,
        stall: float = 0.0,
        reason: str = "",
    ) -> None:
        self.counts[status] += 1
        if status != "saved":
            level = logging.WARNING if status == "failed" else logging.INFO
            _log.log(level, "checkpoint %s %s: %s", lineage, status, reason)
        if self._fellows.rank == 0:
            self._sink(
                "checkpoint",
                step=lineage.step,
                lineage=str(lineage),
                status=status,
                bytes=written.bytes if written else 0,
                seconds=written.seconds if written else seconds,
                stall_seconds=written.stall if written else stall,
                free_bytes=folders.free_bytes(self._folder),
                **({"reason": reason} if reason else {}),
            )


def _not_staged(clocks: Clocks, failure: str) -> _Turn:
    return _Turn(clocks, None, failure, 0.0, False, Future())
