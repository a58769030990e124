"""The tokens of a data set as one memory-mapped array.

Folder of a store: ``tokens.bin`` (uint16 or uint32, little-endian), ``documents.bin`` (int64: the first token of each
document, then the number of tokens), ``tokenizer.json`` (what decodes them) and the manifest of ``sealed.py``. A store
never changes after it was built. Opened by every rank and by loader workers, built by ``tokenise.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.errors import StoreError
from trainer.data.sealed import MANIFEST, WHOLE_DIGEST_BELOW, open_sealed

TOKENS, DOCUMENTS, TOKENIZER = "tokens.bin", "documents.bin", "tokenizer.json"


class Store:
    """A token store, open. Raises StoreError, which names the file and what to do, when it is damaged."""

    def __init__(self, folder: Path, *, whole_below: int = WHOLE_DIGEST_BELOW) -> None:
        manifest = open_sealed(folder, whole_below=whole_below)
        if manifest.get("kind") != "tokens":
            raise StoreError(f"{folder / MANIFEST} does not describe a token store")
        self._attach(folder, manifest)

    def _attach(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens: np.ndarray = np.memmap(folder / TOKENS, dtype=manifest["dtype"], mode="r")
        """[tokens]"""
        self.documents: np.ndarray = np.memmap(folder / DOCUMENTS, dtype="<i8", mode="r")
        """[documents + 1]: document d is ``tokens[documents[d] : documents[d + 1]]``."""

    @property
    def digest(self) -> str:
        """Names the tokens, the tokenizer and the document boundaries: equal digest, equal training data."""
        return str(self.manifest["seal"])

    @property
    def vocab_size(self) -> int:
        """Every token id is below it."""
        return int(self.manifest["vocab_size"])

    @property
    def tokenizer(self) -> Path:
        """The file that decodes the tokens."""
        return self.folder / TOKENIZER

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Opened in another process: verified in the one it comes from, so only mapped here."""
        self._attach(**state)
