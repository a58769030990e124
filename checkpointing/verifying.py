"""Is every byte of a checkpoint what its manifest says? All files at once, and every damaged one named.

The full check of one folder, as fast as the disk and the cores allow: files side by side, a large one by several
threads. For the command line and for conversions; a start of a run checks with all ranks together (``resume.load``).
"""

from __future__ import annotations

import dataclasses
import hmac
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkpointing import folder as folders
from checkpointing.errors import BadCheckpoint, CheckpointError
from checkpointing.manifest import File, Manifest, check_sizes, file_digest, read_manifest


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out for one folder."""

    path: Path
    manifest: Manifest | None
    """None when it cannot be read or trusted."""
    problems: tuple[str, ...]
    """Everything that is wrong; empty for a checkpoint that verifies."""


def verify_all(path: Path, *, secret: bytes | None) -> Verdict:
    """Every size and every digest. A note of earlier damage (``folders.damage``) counts as a problem until deleted."""
    try:
        manifest = read_manifest(path, secret=secret)
    except BadCheckpoint as error:
        return Verdict(path, None, (str(error),))
    problems = [note for note in (folders.damage(path),) if note]
    try:
        check_sizes(path, manifest)
    except BadCheckpoint as error:
        return Verdict(path, manifest, (*problems, str(error)))
    return Verdict(path, manifest, (*problems, *_differing(path, manifest, secret)))


def trusted(path: Path, *, secret: bytes | None) -> Manifest:
    """The manifest of a checkpoint whose every byte verifies. Raises CheckpointError with all that is wrong."""
    verdict = verify_all(path, secret=secret)
    if verdict.manifest is None or verdict.problems:
        raise CheckpointError(f"{path}: " + "; ".join(verdict.problems))
    return verdict.manifest


def _differing(path: Path, manifest: Manifest, secret: bytes | None) -> Iterable[str]:
    cores = len(os.sched_getaffinity(0))
    files = sorted(manifest.files.items(), key=lambda item: -item[1].size)
    threads = max(1, cores // max(1, len(files)))

    def problem(item: tuple[str, File]) -> str:
        name, file = item
        try:
            found = file_digest(path / name, secret=secret, threads=threads)
        except OSError as error:
            return f"{name} cannot be read: {error}"
        good = hmac.compare_digest(found, file.digest)
        return "" if good else f"{name} is damaged: its digest differs from the one in the manifest"

    with ThreadPoolExecutor(cores) as pool:
        return [why for why in pool.map(problem, files) if why]
