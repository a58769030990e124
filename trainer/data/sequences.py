"""Cuts a token store into samples: sequence i is the tokens from i x length on, and the label of each is the next one.

Sequences follow each other without a gap over document boundaries (no padding, no truncation), so the label that would
be the first token of the next document is left out of the loss unless asked for. The tokens behind the last whole
sequence are not used. Reading is random access and stateless.
"""

from __future__ import annotations

import numpy as np

from trainer.data.errors import DataError
from trainer.data.store import Store

IGNORED = -100
"""Label of a position that does not count."""


class Sequences:
    """The samples of a store. Raises DataError when the text is too short for one."""

    def __init__(self, store: Store, *, seq_len: int, cross_document_labels: bool = False) -> None:
        self.store = store
        self.seq_len = seq_len
        self._cross = cross_document_labels
        self._count = max(0, len(store) - 1) // seq_len
        if not self._count:
            raise DataError(
                f"training.seq_len: the data has {len(store)} tokens, too few for one sequence of {seq_len} and a label"
            )

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, labels), int64 [seq_len] each; labels that do not count are ``IGNORED``."""
        if not 0 <= index < self._count:
            raise IndexError(f"sequence {index} of {self._count}")
        first = index * self.seq_len
        window = self.store.tokens[first : first + self.seq_len + 1].astype(np.int64)
        labels = window[1:].copy()
        if not self._cross:
            starts = self.store.documents
            lo, hi = np.searchsorted(starts, [first + 1, first + self.seq_len + 1])
            labels[starts[lo:hi] - first - 1] = IGNORED
        return window[:-1], labels
