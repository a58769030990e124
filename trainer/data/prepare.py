"""Makes sure that the token store of a run exists, and opens it.

May be called first by anyone (a launcher, before any rank exists): it builds the store when it is missing, so that
ranks only open it. Imports no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from configs.schema import Config
from trainer.data import registry
from trainer.data.errors import DataError
from trainer.data.store import Store
from trainer.data.tokenise import content_digest, open_or_build
from trainer.data.tokenizer import from_assets, trained

Log = Callable[[str], None]


def prepare(config: Config, log: Log) -> Store:
    """The token store of a run, built if nobody has. Raises DataError or StoreError (exit 2): both say what to do."""
    if config.experimental.custom_import:
        _import(config.experimental.custom_import)
    return prepare_store(
        dataset=config.training.dataset,
        dataset_path=config.training.dataset_path or "",
        vocab_size=config.training.vocab_size,
        hf_assets_path=config.model.hf_assets_path or "",
        cache_folder=config.job.cache_folder,
        log=log,
    )


def prepare_store(
    *,
    dataset: str,
    dataset_path: str = "",
    vocab_size: int = 2048,
    hf_assets_path: str = "",
    cache_folder: str | Path,
    log: Log,
    children: int | None = None,
    on_shard: Callable[[int], None] = lambda _: None,
) -> Store:
    """``prepare`` with plain arguments. ``children`` and ``on_shard`` as in ``tokenise.open_or_build``."""
    cache = Path(cache_folder).expanduser()
    source = registry.open_source(dataset, dataset_path)
    try:
        content = content_digest(source, cache=cache)
        if hf_assets_path:
            tokenizer = from_assets(hf_assets_path)
        else:
            tokenizer = trained(source, content=content, vocab_size=vocab_size, cache=cache, log=log)
        return open_or_build(
            source, tokenizer, content=content, cache=cache, log=log, children=children, on_shard=on_shard
        )
    except OSError as error:
        raise DataError(f"training.dataset {dataset!r}, job.cache_folder {cache}: {error}") from error


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"experimental.custom_import: {module!r} cannot be imported: {error}") from error
