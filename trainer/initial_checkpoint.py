"""Where do the values of step 0 come from, when another run's checkpoint gives them (``checkpoint.initial_load_path``)?

The path is one checkpoint folder, or a run or folder of checkpoints whose newest valid one is taken; or the URL of
either in an object store, from where rank 0 downloads it. It is read only when the run starts from nothing; a run that
has a checkpoint, or living peers, goes on from those, and says that the path was ignored. The clocks (step, learning
rate schedule, position in the data) always start afresh. Called by ``trainer.build``; collective over the ranks.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from checkpointing.errors import CheckpointError
from checkpointing.fellows import Fellows
from checkpointing.manifest import MANIFEST, METADATA
from checkpointing.objects import ObjectPlace
from checkpointing.resume import load, survey
from checkpointing.state import MODEL, OPTIMIZER
from checkpointing.stock import load_stock
from configs.names import is_url
from configs.schema import Config
from configs.words import Lineage

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

    ``spool`` is a local folder of this group alone for what is downloaded; it goes again.
    Collective over ``group``. It raises CheckpointError, the same on every rank: nothing there, another model, missing
    or extra keys (all listed), digests that differ, a folder that no digest vouches for without ``checkpoint.trust``.
    """
    asked = config.checkpoint
    if not asked.enable or asked.initial_load_path is None or asked.initial_load_in_hf:
        return None
    given, skip = asked.initial_load_path, skipped(config)

    def fill() -> str:
        if is_url(given):
            with _downloaded(given, spool, Fellows(group), secret=secret) as path:
                clocks = load(path, tensors, group=group, secret=secret, skip=skip)
            return told(f"{given.removesuffix(path.name).rstrip('/')}/{path.name}", f"of step {clocks.step}")
        path = find(Path(given).expanduser(), secret=secret)
        if (path / MANIFEST).exists():
            clocks = load(path, tensors, group=group, secret=secret, skip=skip)
            return told(str(path), f"of step {clocks.step}")
        if asked.trust:
            load_stock(path, tensors, group=group, skip=skip)
            return told(str(path), "which no digest vouches for")
        raise CheckpointError(f"{path} has no {MANIFEST}: no digest vouches for it; checkpoint.trust loads it")

    def told(source: str, what: str) -> str:
        parts = [name for name, prefix in _PARTS.items() if prefix not in skip]
        print(f"step 0 takes {' and '.join(parts)} from {source}, {what}; all else starts from the seed")
        return source

    return fill


def skipped(config: Config) -> tuple[str, ...]:
    """Prefixes of the tensors that keep what the seed gave them."""
    excluded = set(config.checkpoint.exclude_from_loading)
    if config.checkpoint.initial_load_model_only:
        excluded.add("optimizer")
    return tuple(prefix for name, prefix in _PARTS.items() if name in excluded)


def find(root: Path, *, secret: bytes | None) -> Path:
    """The checkpoint that ``root`` means. Raises CheckpointError naming each that is passed over."""
    if (root / MANIFEST).exists() or (root / METADATA).exists():
        return root
    folder = root / "checkpoints" if (root / "checkpoints").is_dir() else root
    there = survey(folder, secret=secret, verify_newest=0)
    if there.found:
        return there.found[0].path
    bad = "".join(f"\n  {each.name}: {each.reason}" for each in there.passed_over)
    raise CheckpointError(f"checkpoint.initial_load_path = {str(root)!r} holds no checkpoint that can be used{bad}")


@contextlib.contextmanager
def _downloaded(url: str, spool: Path, fellows: Fellows, *, secret: bytes | None) -> Iterator[Path]:
    """The checkpoint that ``url`` means, as a local folder. Collective; raises CheckpointError on every rank."""
    path, failure = spool, ""
    if fellows.rank == 0:
        try:
            path = _pull(url.rstrip("/"), spool, secret=secret)
        except CheckpointError as error:
            failure = error.reason
    path, failure = fellows.first((path, failure))
    try:
        if failure:
            raise CheckpointError(failure)
        yield path
    finally:
        if fellows.rank == 0:
            shutil.rmtree(spool, ignore_errors=True)


def _pull(url: str, spool: Path, *, secret: bytes | None) -> Path:
    """Rank 0: download one checkpoint, or the newest valid one of those below ``url``. Raises CheckpointError."""
    above, _, name = url.rpartition("/")
    if Lineage.parse_folder(name) is not None:
        place, path = ObjectPlace(above, spool=spool, secret=secret), spool / name
    else:
        place = ObjectPlace(url, spool=spool, secret=secret)
        there = place.survey()
        if not there.found:
            bad = "".join(f"\n  {each.name}: {each.reason}" for each in (*there.passed_over, *there.unfinished))
            raise CheckpointError(f"checkpoint.initial_load_path = {url!r} holds no checkpoint that can be used{bad}")
        path = there.found[0].path
    if failure := place.pull(path):
        raise CheckpointError(failure)
    return path
