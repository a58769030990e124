"""Where does an incarnation's state come from? Peers, one checkpoint, or the seed: one decision, with its reason.

Disk is read only when nobody current is alive; then the lighthouse fixes one lineage for all, out of what the groups
offer. A checkpoint that does not verify is passed over by name and reason; when there are checkpoints and none can be
used the run ends (exit 6), it never starts afresh in silence. Deciding is pure; ``survey`` and ``load`` touch the disk,
and no ``.metadata`` is unpickled before its digest is verified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from checkpointing import folder as folders
from checkpointing.errors import BadCheckpoint, CheckpointError, DamagedCheckpoint, NothingThere
from checkpointing.fellows import Fellows
from checkpointing.manifest import MANIFEST, METADATA, Key, Manifest, check_digests, check_sizes, read_manifest
from checkpointing.retention import abandoned, newest_first
from checkpointing.state import Clocks, describe
from configs.words import SCRATCH, Lineage


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint that can be read."""

    lineage: Lineage
    path: Path
    manifest: Manifest
    verified: bool
    """Every digest was verified; otherwise the manifest's seal and all sizes were."""


@dataclasses.dataclass(frozen=True)
class PassedOver:
    """Something named like a checkpoint that must not be read."""

    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Survey:
    """What a checkpoint folder holds."""

    folder: Path | str
    """A URL in an object store."""
    found: tuple[Found, ...]
    """Newest first."""
    passed_over: tuple[PassedOver, ...]
    unfinished: tuple[PassedOver, ...] = ()
    """Of an object store, where names appear before they are whole. A run whose first save was cut off may start."""


class Source(enum.StrEnum):
    """Where state comes from."""

    OWN = "own"
    """The incarnation's own memory: it is up to date."""
    PEER = "peer"
    DISK = "disk"
    SCRATCH = "scratch"
    """Made from the seed."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """Take the state ``lineage`` from ``source``; ``path`` with ``disk``."""

    source: Source
    lineage: Lineage
    path: Path | None = None


def survey(folder: Path, *, secret: bytes | None, verify_newest: int = 1) -> Survey:
    """Look at every checkpoint in ``folder``; nothing is changed.

    All are checked by manifest and sizes, the newest ones by every digest until ``verify_newest`` have passed. A
    missing folder is an empty survey. Raises CheckpointError if the folder cannot be read.
    """
    try:
        there = folders.candidates(folder)
    except OSError as error:
        raise CheckpointError(f"the checkpoint folder {folder} cannot be read: {error}") from None
    found: list[Found] = []
    passed: list[PassedOver] = []
    for lineage in newest_first(there):
        path = there[lineage]
        full = sum(each.verified for each in found) < verify_newest
        try:
            manifest = verify(path, secret=secret) if full else _glance(path, secret=secret)
        except BadCheckpoint as error:
            passed.append(PassedOver(path.name, str(error)))
            continue
        newer = next((each.lineage for each in found if abandoned(lineage, confirmed=each.lineage)), None)
        if newer is not None:
            passed.append(PassedOver(path.name, f"its branch was rolled back: {newer} was confirmed later"))
            continue
        found.append(Found(lineage, path, manifest, full))
    return Survey(folder, tuple(found), tuple(passed))


def verify(path: Path, *, secret: bytes | None) -> Manifest:
    """Every size and digest of one checkpoint folder. Raises BadCheckpoint with what is wrong."""
    manifest = _glance(path, secret=secret)
    check_digests(path, manifest, secret=secret, names=manifest.files)
    return manifest


def offers(
    survey: Survey, *, config_digest: str, fork: bool = False, load_step: int = -1
) -> tuple[tuple[Found, ...], str]:
    """Checkpoints that this group may bring to a start, newest first, and why. Pure.

    ``load_step`` -1 is the newest. Raises CheckpointError when there are checkpoints and none is valid, when they are
    of another config (without ``fork``), when ``load_step`` is below the newest (without ``fork``); NothingThere when
    only another group can have ``load_step``.
    """
    bad = "".join(f"\n  {each.name}: {each.reason}" for each in (*survey.passed_over, *survey.unfinished))
    if not survey.found:
        if survey.passed_over:
            raise CheckpointError(
                f"no checkpoint in {survey.folder} can be used; repair them, or begin anew "
                f"in another job.dump_folder:{bad}"
            )
        if load_step >= 0:
            raise NothingThere(f"checkpoint.load_step = {load_step}: {survey.folder} holds no checkpoint{bad}")
        return (), f"no checkpoint in {survey.folder}" + (f"; passed over:{bad}" if bad else "")
    others = [found for found in survey.found if found.manifest.clocks.config_digest != config_digest]
    if others and not fork:
        raise CheckpointError(
            f"{others[0].path} was made by another model, data or optimizer config, or of other tokens "
            "under the same path; use another job.dump_folder, undo the change, or set checkpoint.fork to go on "
            "from it on purpose"
        )
    newest = survey.found[0]
    if load_step < 0:
        return survey.found, f"{newest.path.name} is the newest valid one" + (f"; passed over:{bad}" if bad else "")
    wanted = tuple(found for found in survey.found if found.lineage.step == load_step)
    if not wanted and (fork or load_step > newest.lineage.step):
        steps = ", ".join(str(found.lineage.step) for found in survey.found)
        raise NothingThere(f"checkpoint.load_step = {load_step} is not in {survey.folder}, which holds {steps}{bad}")
    if load_step < newest.lineage.step and not fork:
        raise CheckpointError(
            f"checkpoint.load_step = {load_step} is below {newest.path.name}; set checkpoint.fork to go back on purpose"
        )
    return wanted, f"checkpoint.load_step = {load_step}"


def decide_resume(
    *, current: Lineage, healing: bool, restore: Lineage | None, found: Sequence[Found]
) -> tuple[Resume, str]:
    """What a seated group does for its state: the grant's ``current``, whether it heals, the grant's ``restore``. Pure.

    ``found`` is what this group sees on disk. Raises CheckpointError if it is told to restore what it cannot see.
    """
    if healing:
        return Resume(Source.PEER, current), f"{current} lives: its holders give it"
    if restore is None:
        return Resume(Source.OWN, current), f"this incarnation holds {current}"
    if restore == SCRATCH:
        return Resume(Source.SCRATCH, SCRATCH), "nobody current is alive and nobody brought a checkpoint"
    for each in found:
        if each.lineage == restore:
            return Resume(Source.DISK, restore, each.path), f"nobody current is alive; {restore} is fixed for all"
    seen = ", ".join(str(each.lineage) for each in found) or "none"
    raise CheckpointError(f"the run goes on from {restore}, which is not on this group's disk (valid there: {seen})")


def load(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    group: dist.ProcessGroup | None,
    secret: bytes | None,
    skip: Sequence[str] = (),
) -> Clocks:
    """Read one checkpoint into ``tensors``, in place, and return its clocks. Collective over ``group`` (gloo).

    The ranks verify all digests together first. ``tensors`` is this rank's closed list; names that start with one of
    ``skip`` keep their values. Sharding may differ from the writer's. Raises CheckpointError, the same on every rank:
    missing or extra keys, another shape or dtype, a file that cannot be read; DamagedCheckpoint, for which rank 0 has
    left a note in the folder, when a digest differs.
    """
    fellows = Fellows(group)
    manifest, problems = _verify_together(path, fellows, secret)
    if manifest is None or problems:
        if fellows.rank == 0 and manifest is not None:  # what a glance sees needs no note; a wrong secret least of all
            with contextlib.suppress(OSError):  # then the next look verifies, and passes over it, once more
                folders.mark_damaged(path, "; ".join(problems))
        raise DamagedCheckpoint(f"{path} cannot be loaded: " + "; ".join(problems))
    mine = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(skip))}
    held = {name: Key(shard.dtype, shard.shape) for name, shard in ((n, describe(t)) for n, t in mine.items())}
    wanted = {name: key for part in fellows.all(held) for name, key in part.items()}
    if misfits := _misfits(manifest, wanted, skip):
        raise CheckpointError(f"{path} is of another model or optimizer: " + "; ".join(misfits))
    failure = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a missing process group: one rank is a group too
            dcp_load(dict(mine), storage_reader=FileSystemReader(path), process_group=group, no_dist=group is None)
    # DCP's own exception is no Exception; it has told every rank of any rank's failure.
    except (OSError, RuntimeError, ValueError, AssertionError, CheckpointException) as error:
        failure = f"{type(error).__name__}: {error}"
    if failures := [why for why in fellows.all(failure) if why]:
        raise CheckpointError(f"{path} cannot be loaded: {failures[0]}")
    return manifest.clocks


def _glance(path: Path, *, secret: bytes | None) -> Manifest:
    if found := folders.damage(path):
        raise BadCheckpoint(found)
    manifest = read_manifest(path, secret=secret)
    check_sizes(path, manifest)
    return manifest


def _verify_together(path: Path, fellows: Fellows, secret: bytes | None) -> tuple[Manifest | None, list[str]]:
    """The manifest and what is wrong on any rank. Each rank hashes ``.metadata`` and its part of the other files."""
    manifest: Manifest | None = None
    problem = ""
    try:
        manifest = _glance(path, secret=secret)
        others = [name for name in manifest.files if name != METADATA]
        check_digests(path, manifest, secret=secret, names=[METADATA, *others[fellows.rank :: fellows.size]])
    except BadCheckpoint as error:
        problem = str(error)
    told = fellows.all((problem, manifest.lineage if manifest else None))
    problems = sorted({why for why, _ in told if why})
    if not problems and len({lineage for _, lineage in told}) > 1:
        problems = [f"ranks read different {MANIFEST} files"]
    return manifest, problems


def _misfits(manifest: Manifest, wanted: Mapping[str, Key], skip: Sequence[str]) -> list[str]:
    saved = {name: key for name, key in manifest.keys.items() if not name.startswith(tuple(skip))}
    problems = []
    if missing := sorted(wanted.keys() - saved.keys()):
        problems.append("missing in the checkpoint: " + ", ".join(missing))
    if extra := sorted(saved.keys() - wanted.keys()):
        problems.append("only in the checkpoint: " + ", ".join(extra))
    for name in sorted(wanted.keys() & saved.keys()):
        if wanted[name] != saved[name]:
            there, here = saved[name], wanted[name]
            problems.append(f"{name} is {there.dtype}{list(there.shape)}, the model has {here.dtype}{list(here.shape)}")
    return problems
