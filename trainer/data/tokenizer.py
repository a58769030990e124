"""Which tokenizer turns this run's text into ids?

The one in ``model.hf_assets_path`` when that is set (``tokenizer.json``, as Hugging Face writes it), else a byte-level
BPE trained on the run's own text, once, and cached by the digest of that text. Called while data is prepared; training
knows ids only.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpointing.plain import read_object
from trainer.data import children
from trainer.data.encode import BOS, EOS, SMALLEST_VOCABULARY
from trainer.data.errors import DataError
from trainer.data.sealed import digest_of, file_digest, is_sealed, locked, open_sealed, seal
from trainer.data.sources import Source

FILE = "tokenizer.json"
_FORMAT = 1
_SAMPLE_BYTES = 64 << 20
"""Text a tokenizer is trained on at most, spread over the files."""
_BLOCK_BYTES = 1 << 20
_KNOWN_BOS = ("<|begin_of_text|>", "<s>", "<bos>", "[CLS]", "<|endoftext|>")
_KNOWN_EOS = ("<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<|endoftext|>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """A tokenizer on disk and what a token store must know of it."""

    path: Path
    digest: str
    vocab_size: int
    """One more than the greatest id."""
    bos: int | None
    eos: int | None


def from_assets(folder: str) -> TokenizerFile:
    """The tokenizer in a Hugging Face folder. Raises DataError that names the file and the key."""
    path = Path(folder).expanduser().absolute() / FILE
    if not path.is_file():
        raise DataError(f"model.hf_assets_path: no {FILE} in {path.parent}; unset the key to train one on the data")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise DataError(f"model.hf_assets_path: {path} is no tokenizer file: {error}") from error
    special = _special_names(path.with_name("tokenizer_config.json"))
    bos = _token_id(tokenizer, special.get("bos_token"), _KNOWN_BOS)
    eos = _token_id(tokenizer, special.get("eos_token"), _KNOWN_EOS)
    return TokenizerFile(path=path, digest=file_digest(path), vocab_size=_size(tokenizer), bos=bos, eos=eos)


def trained(source: Source, *, content: str, vocab_size: int, cache: Path, log: Callable[[str], None]) -> TokenizerFile:
    """The byte-level BPE of a text, trained by whoever comes first. ``content`` is the digest of the text."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise DataError(f"training.vocab_size: expected at least {SMALLEST_VOCABULARY}, got {vocab_size}")
    key = digest_of({"format": _FORMAT, "content": content, "vocab_size": vocab_size})[:32]
    folder = cache / "tokenizers" / key
    if not is_sealed(folder):
        with locked(cache / "locks" / f"{key}.lock", log=log):
            if not is_sealed(folder):
                _train(source, folder=folder, vocab_size=vocab_size, log=log)
    open_sealed(folder)
    path = folder / FILE
    tokenizer = Tokenizer.from_file(str(path))
    return TokenizerFile(
        path=path,
        digest=file_digest(path),
        vocab_size=_size(tokenizer),
        bos=tokenizer.token_to_id(BOS),
        eos=tokenizer.token_to_id(EOS),
    )


def _train(source: Source, *, folder: Path, vocab_size: int, log: Callable[[str], None]) -> None:
    log(f"training a tokenizer of {vocab_size} tokens on {source.name}")
    building = folder.with_name(f".{folder.name}")
    shutil.rmtree(building, ignore_errors=True)  # we hold the lock: what lies there is a dead process's
    building.mkdir(parents=True)
    children.train(_training_blocks(source), out=building / FILE, vocab_size=vocab_size)
    seal(building, folder, fields={"kind": "tokenizer", "dataset": source.name})


def _training_blocks(source: Source) -> Iterator[list[bytes]]:
    """Documents of every k-th file, k such that the whole stays near the limit; a function of the files alone."""
    total = sum(file.stat().st_size for file in source.files)
    stride = max(1, -(-total // _SAMPLE_BYTES))
    left = _SAMPLE_BYTES
    block: list[bytes] = []
    for file in source.files[::stride]:
        for document in source.read(file):
            block.append(document.encode("utf-8", errors="replace")[:left].decode(errors="ignore").encode())
            left -= len(block[-1])
            if sum(map(len, block)) >= _BLOCK_BYTES or left <= 0:
                yield block
                block = []
            if left <= 0:
                return
    yield block


def _special_names(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"model.hf_assets_path: {path} cannot be read: {error}") from error


def _token_id(tokenizer: Tokenizer, named: Any, known: tuple[str, ...]) -> int | None:
    """The id of a special token: the configured one, else the first of the usual names that the tokenizer has."""
    name = named.get("content") if isinstance(named, dict) else named
    for candidate in (name,) if isinstance(name, str) else known:
        found: int | None = tokenizer.token_to_id(candidate)
        if found is not None:
            return found
    return None


def _size(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
