"""Builds the data part of a rank from its config: the one place here that knows key names.

Called by ``trainer.build`` once a rank knows its place in the mesh; opens (or builds) the token store by ``prepare``.
"""

from __future__ import annotations

import dataclasses

from configs.schema import Config
from configs.shapes import data_parallel_ranks
from trainer.data.batches import Batches, Layout
from trainer.data.loader import Loader
from trainer.data.order import Order
from trainer.data.order import total_samples as stream_length
from trainer.data.prepare import Log, prepare
from trainer.data.sequences import Sequences
from trainer.data.store import Store


@dataclasses.dataclass(kw_only=True)
class Data:
    """What a rank trains on."""

    store: Store
    loader: Loader
    samples: int
    """Of one epoch."""
    total: int | None
    """Length of the global stream in samples; None when it is endless."""


def build(config: Config, *, dp_rank: int, log: Log) -> Data:
    """Everything for data-parallel rank ``dp_rank`` of a group."""
    store = prepare(config, log)
    training = config.training
    sequences = Sequences(store, seq_len=training.seq_len, cross_document_labels=training.cross_document_labels)
    total = total_samples(config, sequences)
    batches = Batches(
        sequences=sequences,
        order=Order(samples=len(sequences), seed=config.debug.seed, shuffle=training.shuffle),
        layout=Layout(
            local_batch_size=training.local_batch_size, dp_rank=dp_rank, dp_ranks=data_parallel_ranks(config)
        ),
        total=total,
    )
    loader = Loader(batches, workers=training.workers, log=log)
    return Data(store=store, loader=loader, samples=len(sequences), total=total)


def total_samples(config: Config, sequences: Sequences) -> int | None:
    """Samples in the whole stream, or None when ``training.epochs`` does not bound it."""
    return stream_length(samples=len(sequences), epochs=config.training.epochs)
