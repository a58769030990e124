"""Which files make up a data set, in which order, and which documents does each hold?

Order and text depend on the files alone, never on the machine, so that machines with the same files agree on every
token. Bytes that are not UTF-8 become U+FFFD: a handful of bad bytes must not end a run. Called by the builders of
tokenizer and token store; nothing here is read during training.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainer.data.errors import DataError

_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_BUILD_RECORDS = ("_sysconfigdata", "config-")
"""Files and folders of the standard library that describe one machine's build: machines would not agree on them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The text of a data set."""

    name: str
    root: Path
    """File names count relative to it in the store's key, so that the same text elsewhere has the same key."""
    files: tuple[Path, ...]
    read: Callable[[Path], Iterable[str]]
    """The documents of one file, in order. May raise DataError."""
    revision: str = "1"
    """Change it when ``read`` yields other documents for the same bytes."""

    def relative(self, file: Path) -> str:
        """The name of one of ``files`` in the store's key."""
        return os.path.relpath(file, self.root)


def python_stdlib(path: str) -> Source:
    """The running interpreter's standard library, its tests and installed packages left out. ``path`` is unused."""
    if path:
        raise DataError("training.dataset_path: data set 'python_stdlib' takes no path; use 'text' for files of yours")
    root = Path(sysconfig.get_path("stdlib"))
    return Source(name="python_stdlib", root=root, files=tuple(_library_files(root)), read=read_whole)


def text(path: str) -> Source:
    """A file, a folder (every file in it that is not hidden, at any depth) or a glob: each file is one document."""
    root, files = _files_of("text", path, suffixes=())
    return Source(name="text", root=root, files=files, read=read_whole)


def jsonl(path: str) -> Source:
    """A file, a folder (its ``*.jsonl``, at any depth) or a glob: each line's ``text`` field is one document."""
    root, files = _files_of("jsonl", path, suffixes=(".jsonl",))
    return Source(name="jsonl", root=root, files=files, read=read_json_lines)


def read_whole(path: Path) -> Iterator[str]:
    """The whole file as one document; nothing when it is empty."""
    content = path.read_bytes().decode("utf-8", errors="replace")
    if content:
        yield content


def read_json_lines(path: Path) -> Iterator[str]:
    """The ``text`` field of each line; empty lines and empty texts are passed over."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            content = _text_field(line.decode("utf-8", errors="replace"), f"{path}:{number}")
            if content:
                yield content


def _text_field(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a line of JSON ({error})") from error
    content = record.get("text") if isinstance(record, dict) else None
    if not isinstance(content, str):
        raise DataError(f'{where}: expected an object with a string under "text"')
    return content


def _library_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _NOT_LIBRARY and not f.startswith(_BUILD_RECORDS))
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith(_BUILD_RECORDS):
                yield Path(folder, name)


def _files_of(dataset: str, path: str, *, suffixes: tuple[str, ...]) -> tuple[Path, tuple[Path, ...]]:
    """(root, files) behind a path of the config. Raises DataError when nothing is there."""
    if not path:
        raise DataError(f"training.dataset_path: data set {dataset!r} needs the path of a file or folder")
    found = Path(path).expanduser().absolute()
    if found.is_file():
        return found.parent, (found,)
    if found.is_dir():
        return found, tuple(_folder_files(found, suffixes=suffixes))
    matches = sorted(Path(match) for match in glob.glob(str(found), recursive=True))  # noqa: PTH207  # an absolute pattern
    files = tuple(match for match in matches if match.is_file())
    if not files:
        raise DataError(f"training.dataset_path: no such file or folder: {found}")
    return Path(os.path.commonpath([file.parent for file in files])), files


def _folder_files(root: Path, *, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (not suffixes or name.endswith(suffixes)) and Path(folder, name).is_file():
                yield Path(folder, name)
