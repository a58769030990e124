"""Samples and batches: where labels count, and what lies behind the end of the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.data import make_batches, make_store, write_corpus
from trainer.data.errors import DataError
from trainer.data.sequences import IGNORED, Sequences


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return make_store(write_corpus(folder / "corpus"), folder / "cache")


def test_labels_never_cross_documents(store):
    """Every label is the next token, but for the first token of a document, which no label is."""
    sequences = Sequences(store, seq_len=16)
    starts = set(store.documents.tolist())
    crossings = 0
    for number in range(len(sequences)):
        tokens, labels = sequences.read(number)
        first = number * 16
        assert tokens.tolist() == store.tokens[first : first + 16].tolist()
        for offset, label in enumerate(labels.tolist()):
            crossing = first + offset + 1 in starts
            crossings += crossing
            assert label == (IGNORED if crossing else store.tokens[first + offset + 1])
    assert crossings >= 10


class StoreInMemory:
    """Documents of 8 tokens each: every boundary lies at the edge of a sequence of 4, 8 or 16."""

    tokens = np.arange(65, dtype=np.uint16)
    documents = np.arange(0, 66, 8)

    def __len__(self):
        return len(self.tokens)


@pytest.mark.parametrize("seq_len", [1, 4, 8, 16])
def test_labels_at_the_edges_of_sequences(seq_len):
    sequences = Sequences(StoreInMemory(), seq_len=seq_len)
    labels = np.concatenate([sequences.read(number)[1] for number in range(len(sequences))])
    assert labels.tolist() == [IGNORED if label % 8 == 0 else label for label in range(1, 65)]


def test_labels_cross_documents_when_asked(store):
    sequences = Sequences(store, seq_len=16, cross_document_labels=True)
    labels = np.concatenate([sequences.read(number)[1] for number in range(len(sequences))])
    assert labels.tolist() == store.tokens[1 : 1 + len(labels)].tolist()


def test_every_document_begins_and_ends_with_its_special_token(store):
    bos, eos = store.manifest["bos"], store.manifest["eos"]
    assert (store.tokens[store.documents[:-1]] == bos).all()
    assert (store.tokens[store.documents[1:] - 1] == eos).all()
    assert np.count_nonzero(store.tokens == bos) == len(store.documents) - 1 == 12


def test_text_too_short_for_a_sequence(store):
    with pytest.raises(DataError, match=r"training\.seq_len"):
        Sequences(store, seq_len=len(store))
    assert len(Sequences(store, seq_len=len(store) - 1)) == 1


def test_batch_has_the_rows_of_its_positions(store):
    batches = make_batches(store, local=3, dp_rank=1, dp_ranks=2)
    batch = batches[4].batch(4)
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64
    assert batch.tokens.shape == batch.labels.shape == (3, 16)
    for row, position in enumerate(range(27, 30)):
        tokens, labels = batches.sequences.read(batches.order.sample(position).sequence)
        assert batch.tokens[row].tolist() == tokens.tolist()
        assert batch.labels[row].tolist() == labels.tolist()
    assert batch.valid == int((batch.labels != IGNORED).sum()) > 0
    assert batch.samples == 3


def test_last_batch_of_finite_data_is_short(store):
    """30 samples and 8 a microbatch: the last has 6, on ranks of 4: 4 and 2, then none; each sample once."""
    used = []
    for dp_rank, counts in ((0, [4, 4, 4, 4, 0]), (1, [4, 4, 4, 2, 0])):
        batches = make_batches(store, local=4, total=30, dp_rank=dp_rank, dp_ranks=2)
        read = [batches[m].batch(m) for m in range(5)]
        assert [batch.samples for batch in read] == counts
        assert read[4].valid == 0
        assert (read[3].labels[counts[3] :] == IGNORED).all()
        for m in range(5):
            used += list(batches.layout.positions(m))[: counts[m]]
    assert sorted(used) == list(range(30))
