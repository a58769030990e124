"""Which folder, or which place in an object store, does a command of ``phalanx checkpoint`` mean?

A run folder means where its config says that checkpoints lie. What lies in an object store is listed there; a
checkpoint that must be read is downloaded into a folder that goes again, for its digests are verified on local bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from configs.initial import own_folders
from configs.load import ConfigError, parse_text
from configs.names import EACH_GROUP, URL_SCHEMES, is_url, nearest
from configs.run_folder import RunFolder
from configs.schema_run import Checkpoint
from configs.secret import secret_key
from configs.words import Exit, ExitRequest, Lineage
from ops.conversion import folder_given

METAVAR = "STEP_FOLDER"
LOCAL = "file://"
HELP = "one checkpoint: its folder, or its URL in an object store"


@dataclasses.dataclass(frozen=True)
class Where:
    """A folder of checkpoints."""

    place: str
    """A path, or a URL."""
    section: Checkpoint | None
    """What the run's config says; None where the folder was named itself."""

    @property
    def remote(self) -> bool:
        return is_url(self.place)


def checkpoints_at(given: str) -> Where:
    """Where the checkpoints lie of a run folder, a folder of checkpoints or the URL of one. Raises ExitRequest."""
    if is_url(given):
        if _known(given).startswith(LOCAL):
            folder_given(Path(given.removeprefix(LOCAL)))
        return Where(given.rstrip("/"), None)
    run = Path(given)
    folder_given(run)
    config = RunFolder(run).config
    if not config.exists():
        return Where(given, None)
    try:
        section = parse_text(config.read_text(), where=str(config)).checkpoint
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
    remote = is_url(section.folder)
    if EACH_GROUP in section.folder:
        raise ExitRequest(Exit.BAD_CONFIG, own_folders(run, section.folder))
    return Where(section.folder if remote else str(run / section.folder), section)


def named_like_a_step(given: str) -> bool:
    """Whether the last part of a path or URL is the name of a checkpoint."""
    return Lineage.parse_folder(given.rstrip("/").rpartition("/")[2]) is not None


@contextlib.contextmanager
def step_at(given: str) -> Iterator[Path]:
    """One checkpoint as a local folder, and the URL instead of that folder in what is raised. Raises ExitRequest."""
    if not is_url(given):
        folder_given(Path(given))
        _must_be_one(given)
        yield Path(given)
        return
    url, _, name = _known(given).rstrip("/").rpartition("/")
    lineage = Lineage.parse_folder(name)
    if lineage is None:
        raise ExitRequest(Exit.BAD_CONFIG, f"{given}: expected the URL of one checkpoint, .../step-STEP-EPOCH.N")
    with tempfile.TemporaryDirectory(prefix="phalanx-") as spool:
        path = Path(spool) / name
        try:
            _download(url, path, lineage)
            yield path
        except ExitRequest as error:
            raise ExitRequest(error.code, error.reason.replace(str(path), given.rstrip("/"))) from error


def _must_be_one(given: str) -> None:
    """Raises ExitRequest, naming the newest one, when a folder holds checkpoints instead of being one."""
    from checkpointing.folder import published  # heavy: torch
    from checkpointing.manifest import MANIFEST
    from checkpointing.retention import newest_first

    if named_like_a_step(given) or (Path(given) / MANIFEST).exists():
        return
    where = checkpoints_at(given)
    found = {} if where.remote else published(Path(where.place))
    if where.section is None and not found:
        return  # what it lacks is for its reader to say
    kind = "a folder of checkpoints" if where.section is None else "a run folder"
    if where.remote:
        hint = f"name one of those in {where.place}"
    else:
        hint = f"the newest is {found[newest_first(found)[0]]}" if found else "it has none yet"
    raise ExitRequest(Exit.BAD_CONFIG, f"{given} is {kind}, expected one checkpoint; {hint}")


def _known(url: str) -> str:
    scheme, known = url.partition("://")[0], ("memory", *URL_SCHEMES)
    if scheme not in known:
        near = nearest(scheme, known)
        hint = f" (did you mean {near}://?)" if near else ""
        raise ExitRequest(Exit.BAD_CONFIG, f"{url}: expected a folder, or a URL of {', '.join(known)}{hint}")
    return url


def _download(url: str, path: Path, lineage: Lineage) -> None:
    from checkpointing.objects import ObjectPlace  # heavy: torch

    place = ObjectPlace(url, spool=path.parent, secret=secret_key())
    if not place.objects(lineage):
        raise ExitRequest(Exit.BAD_CONFIG, f"{url}/{path.name}: nothing is there")
    if failure := place.pull(path):
        raise ExitRequest(Exit.CHECKPOINT, failure)
