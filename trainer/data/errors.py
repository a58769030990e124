"""How the data part says that it cannot go on.

Both errors carry one sentence for the user: which file or key, what was expected, what to do. The process's edge turns
them into exit code 2.
"""

from __future__ import annotations


class DataError(Exception):
    """A data set, its files or its tokenizer cannot be used as configured."""


class StoreError(DataError):
    """A file of the cache is damaged: it is never used and never written over."""
