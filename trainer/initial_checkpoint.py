"""Where do the values of step 0 come from, when another run's checkpoint gives them (``checkpoint.initial_load_path``)?

The path is one checkpoint folder, or a run or folder of checkpoints whose newest valid one is taken; or the URL of
either in an object store, from where rank 0 downloads it. It is read only when the run starts from nothing; a run that
has a checkpoint, or living peers, goes on from those, and says that the path was ignored. The clocks (step, learning
rate schedule, position in the data) always start afresh. Called by ``trainer.build``; collective over the ranks.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from checkpointing.errors import CheckpointError, DamagedCheckpoint
from checkpointing.fellows import Fellows
from checkpointing.manifest import MANIFEST, METADATA
from checkpointing.objects import UNFINISHED, ObjectPlace
from checkpointing.resume import Survey, load, survey
from checkpointing.state import MODEL, OPTIMIZER
from checkpointing.stock import load_stock
from configs.initial import misplaced
from configs.names import is_url
from configs.schema import Config
from configs.words import Lineage

T = TypeVar("T")
_PARTS = {"model": MODEL, "optimizer": OPTIMIZER}


def checkpoint_start(
    config: Config,
    tensors: Mapping[str, torch.Tensor],
    *,
    group: dist.ProcessGroup | None,
    secret: bytes | None,
    spool: Path,
) -> Callable[[], str] | None:
    """What fills the tensors at step 0, after the seed has, and names its folder; None when the seed alone does.

    ``spool`` is a local folder of this group alone for what is downloaded; it goes again. Collective over ``group``.
    The newest one that verifies is taken; each that is passed over is named. It raises CheckpointError, the same on
    every rank: nothing there that can be used, another model, missing or extra keys (all listed), a folder that no
    digest vouches for without ``checkpoint.trust``.
    """
    asked = config.checkpoint
    if not asked.enable or asked.initial_load_path is None or asked.initial_load_in_hf:
        return None
    given, skip = asked.initial_load_path, skipped(config)

    def take(path: Path) -> str:
        if (path / MANIFEST).exists():
            return f"of step {load(path, tensors, group=group, secret=secret, skip=skip).step}"
        if not asked.trust:
            raise CheckpointError(f"{path} has no {MANIFEST}: no digest vouches for it; checkpoint.trust loads it")
        load_stock(path, tensors, group=group, skip=skip)
        return "which no digest vouches for"

    def fill() -> str:
        fellows = Fellows(group)
        source = _Store(given, spool, secret) if is_url(given) else _Folders(Path(given).expanduser(), secret)
        # One rank's view for all: another group may note damage there in between.
        found, passed_over = _first(fellows, source.look)
        for path in found:
            _first(fellows, functools.partial(source.bring, path))
            try:
                told = take(path)
            except DamagedCheckpoint as error:  # told by its digests, before a tensor was touched
                passed_over.append(error.reason)
                continue
            finally:
                if fellows.rank == 0:
                    source.drop(path)
            for reason in passed_over:
                print(f"passed over: {reason}")
            parts = [name for name, prefix in _PARTS.items() if prefix not in skip]
            print(f"step 0 takes {' and '.join(parts)} from {source.name(path)}, {told}; all else starts from the seed")
            return source.name(path)
        bad = "".join(f"\n  {reason}" for reason in passed_over)
        raise CheckpointError(f"checkpoint.initial_load_path = {given!r} holds no checkpoint that can be used{bad}")

    return fill


def skipped(config: Config) -> tuple[str, ...]:
    """Prefixes of the tensors that keep what the seed gave them."""
    excluded = set(config.checkpoint.exclude_from_loading)
    if config.checkpoint.initial_load_model_only:
        excluded.add("optimizer")
    return tuple(prefix for name, prefix in _PARTS.items() if name in excluded)


class _Folders:
    """Checkpoints on a disk, which are read where they lie."""

    def __init__(self, root: Path, secret: bytes | None) -> None:
        self._root = root
        self._secret = secret

    def look(self) -> tuple[list[Path], list[str]]:
        """The checkpoints that are meant, newest first, and why others are passed over. Raises CheckpointError if a
        folder cannot be read."""
        root = self._root
        if (root / MANIFEST).exists() or (root / METADATA).exists():
            return [root], []
        if why := misplaced(root):
            return [], [why]
        folder = root / "checkpoints" if (root / "checkpoints").is_dir() else root
        return _usable(survey(folder, secret=self._secret, verify_newest=0))

    def bring(self, path: Path) -> None:
        """It is there."""

    def drop(self, path: Path) -> None:
        """It stays."""

    def name(self, path: Path) -> str:
        return str(path)


class _Store:
    """Checkpoints in an object store, downloaded one at a time."""

    def __init__(self, url: str, spool: Path, secret: bytes | None) -> None:
        above, _, name = url.rstrip("/").rpartition("/")
        self._only = Lineage.parse_folder(name)
        self._url = url.rstrip("/") if self._only is None else above
        self._spool = spool
        self._secret = secret

    def look(self) -> tuple[list[Path], list[str]]:
        """The same. Raises CheckpointError if the store cannot be read."""
        if self._only is not None:
            there = self._place.objects(self._only)
            bad = (UNFINISHED if there else "nothing is there") if MANIFEST not in there else ""
            return ([], [f"{self._only.folder}: {bad}"]) if bad else ([self._spool / self._only.folder], [])
        return _usable(self._place.survey())

    def bring(self, path: Path) -> None:
        """Download it. Raises CheckpointError."""
        if failure := self._place.pull(path):
            raise CheckpointError(failure)

    def drop(self, path: Path) -> None:
        """Remove the copy."""
        shutil.rmtree(self._spool, ignore_errors=True)

    def name(self, path: Path) -> str:
        return f"{self._url}/{path.name}"

    @property
    def _place(self) -> ObjectPlace:
        return ObjectPlace(self._url, spool=self._spool, secret=self._secret)


def _usable(there: Survey) -> tuple[list[Path], list[str]]:
    bad = (*there.passed_over, *there.unfinished)
    return [each.path for each in there.found], [f"{each.name}: {each.reason}" for each in bad]


def _first(fellows: Fellows, act: Callable[[], T]) -> T:
    """What rank 0 finds or does, for all ranks. Collective; raises CheckpointError on every rank."""
    result: T | None = None
    failure = ""
    if fellows.rank == 0:
        try:
            result = act()
        except CheckpointError as error:
            failure = error.reason
    result, failure = fellows.first((result, failure))
    if failure:
        raise CheckpointError(failure)
    return cast("T", result)
