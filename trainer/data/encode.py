"""The child process that runs ``tokenizers``: trains a tokenizer, or turns documents into token ids.

It is a program of its own, started without fork, because the threads of ``tokenizers`` and a fork of their process
deadlock; and it imports no torch, so that it starts in a fraction of a second. It only ever reads documents from its
standard input, so a data set of the user's need not be importable here.

    python -m trainer.data.encode PARENT train OUT VOCAB_SIZE     reads blocks to the end, writes a tokenizer file
    python -m trainer.data.encode PARENT tokens TOKENIZER BOS EOS DTYPE   answers each block with one line

A block is one line of JSON (``lengths`` in bytes, and for tokens ``path`` and ``input``) and then the bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from blake3 import blake3
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from configs.lifetime import die_with_parent

BOS, EOS = "<bos>", "<eos>"
SMALLEST_VOCABULARY = 258
"""Every byte and two special tokens."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """The tokens of some documents, as one file holds them."""

    lengths: np.ndarray
    """Tokens of each document, int64."""
    tokens: np.ndarray


def read_shard(path: Path, *, input_digest: str, dtype: np.dtype[Any]) -> Shard | None:
    """A shard written by ``tokens`` for exactly this input; None when the file is missing, another's or damaged."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
            payload = file.read()
    except (OSError, ValueError):
        return None
    if not isinstance(header, dict) or header.get("input") != input_digest:
        return None
    if header.get("blake3") != blake3(payload).hexdigest():
        return None
    split = 8 * int(header["documents"])
    return Shard(lengths=np.frombuffer(payload[:split], "<i8"), tokens=np.frombuffer(payload[split:], dtype))


def write_block(stream: IO[bytes], documents: list[bytes], **fields: str) -> None:
    """Send documents to a child."""
    header = {**fields, "lengths": [len(document) for document in documents]}
    stream.write(json.dumps(header).encode() + b"\n")
    stream.writelines(documents)
    stream.flush()


def _read_blocks(stream: IO[bytes]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    while line := stream.readline():
        header = json.loads(line)
        yield header, [stream.read(length).decode() for length in header["lengths"]]


def _train(out: Path, vocab_size: int) -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    documents = (document for _, block in _read_blocks(sys.stdin.buffer) for document in block)
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(out))


def _tokens(tokenizer_file: Path, bos: int, eos: int, dtype: np.dtype[Any]) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True  # "<eos>" inside a document is text, not the end of it
    tokenizer.no_truncation()
    tokenizer.no_padding()
    head, tail = ([token] if token >= 0 else [] for token in (bos, eos))
    for header, documents in _read_blocks(sys.stdin.buffer):
        encodings = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        ids = [head + encoding.ids + tail for encoding in encodings]
        tokens = _write_shard(Path(header["path"]), ids, input_digest=header["input"], dtype=dtype)
        print(tokens, flush=True)


def _write_shard(path: Path, documents: list[list[int]], *, input_digest: str, dtype: np.dtype[Any]) -> int:
    lengths = np.array([len(document) for document in documents], "<i8")
    tokens = np.concatenate([np.array(document, dtype) for document in documents])
    payload = lengths.tobytes() + tokens.tobytes()
    header = {"input": input_digest, "documents": len(documents), "blake3": blake3(payload).hexdigest()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(json.dumps(header).encode() + b"\n" + payload)
    temporary.replace(path)
    return len(tokens)


def main(arguments: list[str]) -> None:
    """Run one of the two forms of the module's docstring."""
    parent, form, *rest = arguments
    die_with_parent(int(parent))
    if form == "train":
        _train(Path(rest[0]), int(rest[1]))
    else:
        _tokens(Path(rest[0]), int(rest[1]), int(rest[2]), np.dtype(rest[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
