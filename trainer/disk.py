"""The checkpoints of a run as one rank uses them: which are good, load one, save one each step in the background."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from checkpointing import chosen
from checkpointing.errors import CheckpointError, DamagedCheckpoint, NothingThere
from checkpointing.fellows import Fellows
from checkpointing.objects import ObjectPlace
from checkpointing.resume import Found, Survey, load, offers, survey
from checkpointing.state import Clocks
from checkpointing.turns import Commit, Policy, alone, decide_turn, may_be_saved, time_slice
from checkpointing.writer import Checkpointer
from configs.names import is_url, own_folder
from configs.run_folder import EventSink, RunFolder
from configs.schema import Config
from configs.words import Exit, ExitRequest, Lineage
from replica_groups.identity import Place
from trainer.beginning import lost_checkpoints
from trainer.state import Disk

_DRAIN_S = 30.0


class NoDisk:
    """A run that saves nothing: peers alone keep the state, and the loss of all groups starts again from the seed."""

    def offered(self) -> tuple[Found, ...]:
        return ()

    def seen(self) -> tuple[Found, ...]:
        return ()

    def load(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> Clocks:
        raise LookupError(f"this run saves nothing; {path} cannot be loaded")

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        clocks: Clocks,
        *,
        rank: int,
        size: int,
        holds: bool,
        holders: int,
    ) -> bool:
        """Nothing, by nobody."""
        return False

    def save_last(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None:
        """Nothing."""

    def confirm(self, lineage: Lineage, *, checksum: int | None = None) -> None:
        """Nothing."""

    def orphan(self, lineage: Lineage) -> None:
        """Nothing."""

    def fence(self, fences: Sequence[Lineage]) -> None:
        """Nothing."""

    def drain(self) -> None:
        """Nothing."""


class RunDisk:
    """The checkpoint folder of a run."""

    def __init__(
        self,
        folder: Path,
        *,
        checkpointer: Checkpointer,
        group: dist.ProcessGroup,
        config_digest: str,
        secret: bytes | None,
        fork: bool,
        policy: Policy,
        lost: Callable[[], str | None] = lambda: None,
        objects: ObjectPlace | None = None,
        load_step: int = -1,
        initial: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._checkpointer = checkpointer
        self._group = group
        self._config_digest = config_digest
        self._secret = secret
        self._fork = fork
        self._policy = policy
        self._lost = lost
        self._objects = objects
        self._load_step = load_step
        self._initial = initial
        self._clock = clock
        self._last_slice: int | None = None
        self._alone = False

    def offered(self) -> tuple[Found, ...]:
        """What this group may bring to a start, by manifests and sizes; a joiner of a living run must not read more.
        Raises CheckpointError; NothingThere if only another group can have what is asked for."""
        there = self._survey()
        lineages = [each.lineage for each in there.found]
        step = self._load_step
        if chosen.met(self._folder, step, lineages):
            print(f"checkpoint.load_step = {step} was met earlier: the run goes on from there")
            step = -1
        try:
            found, reason = offers(there, config_digest=self._config_digest, fork=self._fork, load_step=step)
        except NothingThere:
            self._remember(step, lineages)
            raise
        if not found and (why := self._lost()):
            raise NothingThere(why)
        self._remember(step, lineages)
        print(f"on disk: {reason}")
        if found and self._initial is not None:
            print(f"checkpoint.initial_load_path = {self._initial!r} is ignored: {self._folder} holds a checkpoint")
        return found

    def _remember(self, step: int, lineages: list[Lineage]) -> None:
        if step >= 0:
            try:
                chosen.remember(self._folder, step, lineages)
            except OSError as error:
                raise CheckpointError(f"checkpoint.load_step = {step} cannot be noted: {error}") from error

    def seen(self) -> tuple[Found, ...]:
        """Every checkpoint with a manifest; digests are verified by ``load``."""
        return self._survey().found

    def _survey(self) -> Survey:
        if self._objects is not None:
            return self._objects.survey()
        return survey(self._folder, secret=self._secret, verify_newest=0)

    def load(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> Clocks:
        """Collective over the group. Raises CheckpointError; a checkpoint that does not verify ends this incarnation,
        and its successor offers the next older one."""
        fellows = Fellows(self._group)
        if self._objects is not None:
            failure = fellows.first(self._objects.pull(path) if fellows.rank == 0 else "")
            if failure:
                raise CheckpointError(failure)
        try:
            return load(path, tensors, group=self._group, secret=self._secret)
        except DamagedCheckpoint as error:
            if self._objects is not None and fellows.rank == 0:
                with contextlib.suppress(OSError):  # then the next start downloads it once more
                    self._objects.mark_damaged(path, error.reason)
            raise ExitRequest(Exit.INCARNATION_OVER, error.reason) from error
        finally:
            if self._objects is not None and fellows.rank == 0:
                shutil.rmtree(path, ignore_errors=True)  # a copy

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        clocks: Clocks,
        *,
        rank: int,
        size: int,
        holds: bool,
        holders: int,
    ) -> bool:
        """Save in the background if this step is saved and it is the turn of participant ``rank`` of ``size``. Returns
        whether any participant may save it."""
        commit = Commit(step=clocks.step, rank=rank, size=size, holds=holds, holders=holders, now=self._now())
        self._tell(alone(commit, self._policy) and holds)
        turn, _ = decide_turn(commit, self._policy, last_slice=self._last_slice)
        if turn:
            self._last_slice = time_slice(commit.now, self._policy)
        self._checkpointer.maybe_save(tensors=tensors, clocks=clocks, turn=turn)
        return may_be_saved(commit, self._policy)

    def _now(self) -> float:
        """Rank 0's clock on every rank, so that all decide alike. Collective when saving goes by the clock."""
        if self._policy.interval_s is None:
            return 0.0
        now = torch.tensor([self._clock()], dtype=torch.float64)
        dist.broadcast(now, group=self._group, group_src=0)
        return float(now)

    def _tell(self, alone_now: bool) -> None:
        """The log says when the only group left saves every step, and when it need not any more."""
        if alone_now != self._alone:
            self._alone = alone_now
            if alone_now:
                print("no other group holds the state: every step is saved, whatever checkpoint.interval says")
            else:
                print("another group holds the state: saving goes by checkpoint.interval again")

    def save_last(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None:
        """Collective over the group; blocks. Raises CheckpointError."""
        self._checkpointer.finish(tensors=tensors, clocks=clocks)

    def confirm(self, lineage: Lineage, *, checksum: int | None = None) -> None:
        self._checkpointer.confirm(lineage, checksum=checksum)

    def orphan(self, lineage: Lineage) -> None:
        self._checkpointer.orphan(lineage)

    def fence(self, fences: Sequence[Lineage]) -> None:
        self._checkpointer.fence(fences)

    def drain(self) -> None:
        """Let a save that is confirmed and running come to its end."""
        self._checkpointer.close(wait_s=_DRAIN_S)


def build_disk(
    config: Config,
    place: Place,
    *,
    run: RunFolder,
    incarnation: int,
    config_digest: str,
    secret: bytes | None,
    sink: EventSink,
    failpoint: Callable[..., None],
) -> Disk:
    """The checkpoints that the config asks for. Collective over the group: saving has process groups of its own."""
    if not config.checkpoint.enable:
        return NoDisk()
    where, folder = own_folder(config.checkpoint.folder, group=place.group), local_folder(config, place, run)
    objects = ObjectPlace(where, spool=folder, secret=secret) if is_url(where) else None
    checkpointer = Checkpointer(
        folder,
        group=cpu_group(),
        writer=f"{place.group}.{incarnation}",
        keep_latest_k=config.checkpoint.keep_latest_k,
        keep_every=config.checkpoint.keep_every,
        async_mode=config.checkpoint.async_mode,
        secret=secret,
        sink=sink,
        failpoint=failpoint,
        place=objects,
    )
    checkpointer.start()
    return RunDisk(
        folder,
        checkpointer=checkpointer,
        group=cpu_group(),
        config_digest=config_digest,
        secret=secret,
        fork=config.checkpoint.fork,
        policy=Policy(
            interval=config.checkpoint.interval,
            interval_s=config.checkpoint.interval_s,
            first_step=config.checkpoint.enable_first_step_checkpoint,
            groups=config.launch.groups,
        ),
        lost=functools.partial(lost_checkpoints, run, folder=where if is_url(where) else str(folder)),
        objects=objects,
        load_step=config.checkpoint.load_step,
        initial=config.checkpoint.initial_load_path,
    )


def local_folder(config: Config, place: Place, run: RunFolder) -> Path:
    """Where this group writes its checkpoints first, and for good where ``checkpoint.folder`` is no object store."""
    where = own_folder(config.checkpoint.folder, group=place.group)
    return run.root / "spool" / place.group if is_url(where) else run.root / where


def cpu_group() -> dist.ProcessGroup:
    """A new gloo process group of all ranks of this group. Collective."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group
