"""Where do the weights of step 0 come from, when not from the seed? Out of a Hugging Face folder.

With ``checkpoint.initial_load_in_hf`` the folder is ``checkpoint.initial_load_path``, else ``model.hf_assets_path``. It
is read only when the run starts from nothing: a run that has a checkpoint, or living peers, goes on from those and may
have lost the folder. Everything but the weights (optimizer, clocks) starts as from the seed. Weights mean nothing with
the tokens of another tokenizer, so the folder's must be the run's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from checkpointing.errors import CheckpointError
from checkpointing.weights import load_weights
from configs.schema import Config
from trainer.convert import open_hf
from trainer.data.assets import same_tokenizer
from trainer.data.tokenizer import FILE as TOKENIZER
from trainer.exports import fitted
from trainer.models.registry import ModelSpec


def hf_start(
    config: Config, spec: ModelSpec[object], tensors: Mapping[str, torch.Tensor], *, tokenizer: Path
) -> Callable[[], str] | None:
    """What fills the model at step 0, after the seed has, and names the folder; None when the seed alone does.

    ``tokenizer`` is the file of the run's. Every rank calls it and reads the slices that its shards need; no
    collectives. It raises CheckpointError, the same on every rank that sees the same folder: another model's config,
    names missing or unknown, another tokenizer, a file that cannot be read.
    """
    checkpoint = config.checkpoint
    if not checkpoint.initial_load_in_hf:
        return None
    folder = Path(checkpoint.initial_load_path or config.model.hf_assets_path or "").expanduser()

    def fill() -> str:
        began = time.monotonic()
        _same_tokens(folder, tokenizer)
        source, pairs, _, _ = open_hf(folder, spec, config.model.flavor, args=fitted(config, spec, tensors))
        size = load_weights(source, pairs, tensors)
        print(f"weights of step 0 from {folder}: {size / 1e6:,.1f} MB in {time.monotonic() - began:.1f} s")
        return str(folder)

    return fill


def _same_tokens(folder: Path, own: Path) -> None:
    """Raises CheckpointError when the folder's tokenizer is not the run's; says so when it has none to compare."""
    theirs = folder / TOKENIZER
    if not theirs.exists():
        print(f"{folder} has no {TOKENIZER}: the tokens are those of this run's own tokenizer and cannot be compared")
        return
    try:
        same = same_tokenizer(theirs, own)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{theirs} cannot be compared with this run's tokenizer: {error}") from None
    if not same:
        raise CheckpointError(
            f"{theirs} is not this run's tokenizer, so the weights would meet tokens that they were not trained on; "
            f"set model.hf_assets_path to {str(folder)!r}"
        )
