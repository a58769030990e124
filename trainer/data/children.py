"""Starts and feeds the processes of ``encode.py``.

Children are plain programs (no fork of this process, whose threads they must not inherit) and end with the process
that started them. Called by the builders of tokenizer and token store.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trainer.data.encode import write_block
from trainer.data.errors import DataError

_CHECKOUT = str(Path(__file__).resolve().parents[2])


class Encoder:
    """One child that turns documents into shard files, one block at a time.

    The kernel ends a child with the *thread* that started it, so a thread that makes an Encoder keeps it to itself.
    """

    def __init__(self, *, tokenizer: Path, bos: int | None, eos: int | None, dtype: str) -> None:
        numbers = [str(-1 if token is None else token) for token in (bos, eos)]
        self._child = _start("tokens", str(tokenizer), *numbers, dtype, parallel=False)

    def encode(self, documents: list[bytes], *, path: Path, input_digest: str) -> int:
        """Write the shard file of some UTF-8 documents and return its number of tokens."""
        stdin, stdout = _pipes(self._child)
        with contextlib.suppress(BrokenPipeError):
            write_block(stdin, documents, path=str(path), input=input_digest)
        answer = stdout.readline()
        if not answer:
            raise DataError(f"the process that encodes {path} ended with exit code {self._child.wait()}")
        return int(answer)

    def close(self) -> None:
        """End the child and wait for it."""
        _finish(self._child)


def train(blocks: Iterator[list[bytes]], *, out: Path, vocab_size: int) -> None:
    """Train a byte-level BPE on UTF-8 documents into the file ``out``."""
    child = _start("train", str(out), str(vocab_size), parallel=True)
    stdin, _ = _pipes(child)
    try:
        with contextlib.suppress(BrokenPipeError):
            for block in blocks:
                write_block(stdin, block)
    finally:
        code = _finish(child)
    if code:
        raise DataError(f"the process that trains the tokenizer ended with exit code {code}")


def _start(form: str, *arguments: str, parallel: bool) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": str(parallel).lower(),
        "PYTHONPATH": os.pathsep.join(filter(None, [_CHECKOUT, os.environ.get("PYTHONPATH")])),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.data.encode", str(os.getpid()), form, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None
    assert child.stdout is not None
    return child.stdin, child.stdout


def _finish(child: subprocess.Popen[bytes]) -> int:
    stdin, stdout = _pipes(child)
    with contextlib.suppress(BrokenPipeError):
        stdin.close()
    code = child.wait()
    stdout.close()
    return code
