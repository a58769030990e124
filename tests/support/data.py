"""A small corpus with known documents, and token stores of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from trainer.data.batches import Batches, Layout
from trainer.data.order import Order
from trainer.data.prepare import prepare_store
from trainer.data.sequences import Sequences
from trainer.data.store import Store

VOCABULARY = 300


def write_corpus(folder: Path, *, files: int = 12, lines: int = 40) -> Path:
    """Text files that differ from each other in every line."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = "".join(f"file {number} line {line}: {(number + 1) * (line + 7) % 101} sheep\n" for line in range(lines))
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


def make_store(corpus: Path, cache: Path, **options) -> Store:
    """The token store of a folder of text, encoded by one child."""
    arguments = {"dataset": "text", "vocab_size": VOCABULARY, "children": 1, "log": lambda _: None, **options}
    return prepare_store(dataset_path=str(corpus), cache_folder=cache, **arguments)


def make_batches(store: Store, *, seq_len: int = 16, local: int = 2, total: int | None = None, **layout) -> Batches:
    """Microbatches over a store with seed 5."""
    sequences = Sequences(store, seq_len=seq_len)
    return Batches(
        sequences=sequences,
        order=Order(samples=len(sequences), seed=5),
        layout=Layout(local_batch_size=local, **layout),
        total=total,
    )


def start_program(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs ``code`` with ``sys.argv[1:]`` set."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
