"""Builds the token store of a data set, once for all who need it.

The store's key covers the text, the tokenizer and the format, so a changed file is another store. Whoever holds the
key's lock builds; the others wait and open. Work goes in shards of whole documents, each written atomically by a child
process and vouched for by digests of its input and output: a builder that is killed loses the shards in flight, its
successor takes the others as they are. Called by ``build.prepare``.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from trainer.data.children import Encoder
from trainer.data.encode import Shard, read_shard
from trainer.data.errors import DataError
from trainer.data.sealed import digest_of, file_digest, is_sealed, locked, seal
from trainer.data.sources import Source
from trainer.data.store import DOCUMENTS, TOKENIZER, TOKENS, Store
from trainer.data.tokenizer import TokenizerFile

FORMAT = 1
"""Part of the key: grows when the same text and tokenizer would give other bytes."""
_SMALLEST_SHARD = 1 << 20
_MOST_SHARDS = 1024
_MOST_CHILDREN = 16

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class _Work:
    index: int
    path: Path
    documents: list[bytes]
    input_digest: str


def open_or_build(
    source: Source,
    tokenizer: TokenizerFile,
    *,
    content: str,
    cache: Path,
    log: Log,
    children: int | None = None,
    on_shard: Callable[[int], None] = lambda _: None,
) -> Store:
    """The store of a text whose digest is ``content``.

    ``children`` processes encode (default: one a core); ``on_shard`` is called with each finished shard's number.
    Raises DataError when the text cannot be read and StoreError when a finished store is damaged.
    """
    key = digest_of({"format": FORMAT, "content": content, "tokenizer": tokenizer.digest})[:32]
    folder = cache / "stores" / key
    if not is_sealed(folder):
        with locked(cache / "locks" / f"{key}.lock", log=log):
            if not is_sealed(folder):
                _build(source, tokenizer, folder=folder, log=log, children=children, on_shard=on_shard)
    return Store(folder)


def content_digest(source: Source, *, cache: Path) -> str:
    """blake3 over the names and bytes of a source's files.

    Cached under their names, sizes and modification times: reading a large corpus at every start would cost minutes.
    """
    stats = [(source.relative(file), *_size_and_time(file)) for file in source.files]
    note = cache / "content" / digest_of([source.name, source.revision, str(source.root), stats])[:32]
    try:
        return str(json.loads(note.read_text())["content"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never computed, or torn by a crash: compute it
    files = [(source.relative(file), file_digest(file)) for file in source.files]
    content = digest_of([source.name, source.revision, files])
    note.parent.mkdir(parents=True, exist_ok=True)
    temporary = note.with_name(f".{note.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"content": content, "files": len(files)}))
    temporary.replace(note)
    return content


def _size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _build(
    source: Source,
    tokenizer: TokenizerFile,
    *,
    folder: Path,
    log: Log,
    children: int | None,
    on_shard: Callable[[int], None],
) -> None:
    """Runs under the key's lock."""
    shards = folder.with_name(f".{folder.name}.shards")
    shards.mkdir(parents=True, exist_ok=True)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    resumed, total = _encode_missing(source, tokenizer, shards=shards, dtype=dtype, children=children, done=on_shard)
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # a dead builder's: we hold the lock
    building.mkdir()
    tokens, documents = _assemble(shards, building=building, total=total, dtype=dtype)
    if not tokens:
        raise DataError(f"training.dataset {source.name!r}: no text in {source.root}")
    shutil.copyfile(tokenizer.path, building / TOKENIZER)
    fields = {
        "kind": "tokens",
        "format": FORMAT,
        "dataset": source.name,
        "dtype": dtype.str,
        "tokens": tokens,
        "documents": documents,
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
    }
    seal(building, folder, fields=fields)
    shutil.rmtree(shards)
    log(f"built token store {folder}: {tokens} tokens of {documents} documents, {resumed} of {total} shards resumed")


def _encode_missing(
    source: Source,
    tokenizer: TokenizerFile,
    *,
    shards: Path,
    dtype: np.dtype[Any],
    children: int | None,
    done: Callable[[int], None],
) -> tuple[int, int]:
    """Have every shard written; returns (shards found whole, shards in all)."""
    resumed = total = 0
    with _Encoders(tokenizer, dtype=dtype, children=children or _cores(), done=done) as encoders:
        for work in _works(source, shards=shards):
            if encoders.failed:
                break
            total += 1
            if read_shard(work.path, input_digest=work.input_digest, dtype=dtype) is not None:
                resumed += 1
            else:
                encoders.put(work)
    return resumed, total


def _works(source: Source, *, shards: Path) -> Iterator[_Work]:
    """Whole documents, packed in order into shards of about equal size: a function of the text alone."""
    size = max(_SMALLEST_SHARD, sum(file.stat().st_size for file in source.files) // _MOST_SHARDS)
    index, held, documents = 0, 0, list[bytes]()
    for file in source.files:
        for document in source.read(file):
            documents.append(document.encode("utf-8", errors="replace"))
            held += len(documents[-1])
            if held >= size:
                yield _work(index, documents, shards=shards)
                index, held, documents = index + 1, 0, []
    if documents:
        yield _work(index, documents, shards=shards)


def _work(index: int, documents: list[bytes], *, shards: Path) -> _Work:
    hasher = blake3(digest_of([len(document) for document in documents]).encode())
    for document in documents:
        hasher.update(document)
    return _Work(index, shards / f"shard-{index:06d}", documents, hasher.hexdigest())


def _assemble(shards: Path, *, building: Path, total: int, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Join the shards in order; returns (tokens, documents)."""
    at = 0
    starts = [np.zeros(1, "<i8")]
    with (building / TOKENS).open("wb") as out:
        for index in range(total):
            shard = _finished_shard(shards / f"shard-{index:06d}", dtype=dtype)
            out.write(shard.tokens.tobytes())
            starts.append(at + np.cumsum(shard.lengths))
            at += len(shard.tokens)
    documents = np.concatenate(starts).astype("<i8")
    (building / DOCUMENTS).write_bytes(documents.tobytes())
    return at, len(documents) - 1


def _finished_shard(path: Path, *, dtype: np.dtype[Any]) -> Shard:
    with path.open("rb") as file:
        expected = json.loads(file.readline())["input"]
    shard = read_shard(path, input_digest=expected, dtype=dtype)
    if shard is None:
        raise DataError(f"{path} was damaged while the token store was built; start again")
    return shard


def _cores() -> int:
    return min(_MOST_CHILDREN, len(os.sched_getaffinity(0)))


class _Encoders:
    """Threads that each own one encoding child and take work from a short queue."""

    def __init__(
        self, tokenizer: TokenizerFile, *, dtype: np.dtype[Any], children: int, done: Callable[[int], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._done = done
        self._queue: queue.Queue[_Work | None] = queue.Queue(maxsize=1)
        self._failed = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(children, thread_name_prefix="encoder")
        self._threads = [self._pool.submit(self._serve) for _ in range(children)]

    @property
    def failed(self) -> bool:
        """Whether a child has failed; its error is raised on leaving."""
        return self._failed.is_set()

    def put(self, work: _Work) -> None:
        """Hand over one shard; waits while every child is busy."""
        self._queue.put(work)

    def __enter__(self) -> _Encoders:
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        self._pool.shutdown()
        for thread in self._threads:
            thread.result()

    def _serve(self) -> None:
        """One thread's life. After a failure it goes on to empty the queue, so that nobody waits for it."""
        try:
            self._encode_all()
        except BaseException:
            self._failed.set()
            while self._queue.get() is not None:
                pass
            raise

    def _encode_all(self) -> None:
        encoder: Encoder | None = None
        try:
            while (work := self._queue.get()) is not None:
                if encoder is None:
                    encoder = Encoder(
                        tokenizer=self._tokenizer.path,
                        bos=self._tokenizer.bos,
                        eos=self._tokenizer.eos,
                        dtype=self._dtype.str,
                    )
                encoder.encode(work.documents, path=work.path, input_digest=work.input_digest)
                self._done(work.index)
        finally:
            if encoder is not None:
                encoder.close()
