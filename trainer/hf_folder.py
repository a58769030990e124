"""What makes a folder of weights a model folder for Hugging Face's tools: config.json, weights, tokenizer files.

``transformers`` and torchtune's loader read it: ``config.json`` has every field of the architecture, the dtype and the
special tokens; weights are safetensors in Hugging Face's names and layout. Tensors are taken one at a time, converted,
and written, so a model never lies in memory as a whole. Called with tensors of a checkpoint (``trainer.convert``) or of
a living group (``trainer.exports``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from checkpointing.errors import CheckpointError
from checkpointing.folder import sync_folder
from checkpointing.hf_format import CONFIG, FILE_LIMIT, Progress, write_json, write_safetensors
from checkpointing.plain import read_object
from checkpointing.weights import Weight
from trainer.data.assets import GENERATION, Special, copy_tokenizer, has_tokenizer
from trainer.models.exchange import Exchange
from trainer.models.registry import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A model, as much as an export must know of it."""

    spec: ModelSpec[Any]
    args: Any
    """With the vocabulary that its parameters have."""
    seq_len: int
    """The longest context it is meant for."""
    tokenizer: Path | None
    """A folder with tokenizer files."""


def exchange_of(spec: ModelSpec[Any]) -> Exchange[Any]:
    """Raises CheckpointError for a model that has none."""
    if spec.exchange is None:
        raise CheckpointError(f"the model {spec.name} has no mapping to the formats of others")
    return spec.exchange


def write_model_folder(
    folder: Path,
    model: Described,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    dtypes: Mapping[str, torch.dtype],
    dtype: torch.dtype | None = None,
    limit: int = FILE_LIMIT,
    progress: Progress = lambda _: None,
) -> int:
    """Fill the existing, empty ``folder``: bytes of weights.

    ``tensors`` gives (our name, whole tensor) in the order of ``dtypes``, which has the dtypes they come in; ``dtype``
    is the one they are written in (None: as they come). Raises CheckpointError, OSError and DataError.
    """
    exchange = exchange_of(model.spec)
    weights = {weight.name: weight for weight in exchange.hf_map(model.args).weights}
    if odd := sorted(weights.keys() ^ dtypes.keys()):
        raise CheckpointError(
            f"these are not the parameters of {model.spec.name}; missing or unknown: {', '.join(odd)}"
        )
    special = Special(None, None)
    if model.tokenizer is not None and has_tokenizer(model.tokenizer):
        special = copy_tokenizer(model.tokenizer, folder)
    written = dtype or next(iter(dtypes.values()))
    _write_configs(folder, exchange.hf_config(model.args, seq_len=model.seq_len), special, written)
    sizes = {
        weights[name].theirs: math.prod(weights[name].shape) * (dtype or found).itemsize
        for name, found in dtypes.items()
    }
    size = write_safetensors(folder, _theirs(tensors, weights, dtype), sizes=sizes, limit=limit, progress=progress)
    sync_folder(folder)
    return size


def context_length(assets: str | None, *, trained: int) -> int:
    """The longest context of a model that was trained on ``trained`` tokens and may come from published weights: what
    the config beside its tokenizer says, where there is one."""
    try:
        found = read_object(Path(assets).expanduser() / CONFIG).get("max_position_embeddings") if assets else 0
    except (OSError, ValueError):
        found = 0
    return max(trained, found) if type(found) is int else trained


def _theirs(
    tensors: Iterable[tuple[str, torch.Tensor]], weights: Mapping[str, Weight], dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        weight = weights[name]
        if tuple(tensor.shape) != weight.shape:
            raise CheckpointError(f"{name} is {list(tensor.shape)}, the model has {list(weight.shape)}")
        yield weight.theirs, _cast(name, weight.to_theirs(tensor), dtype)


def _cast(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if dtype is None or tensor.dtype == dtype:
        return tensor
    found = tensor.to(dtype)
    if dtype == torch.float16 and bool((found.isinf() & tensor.isfinite()).any()):
        raise CheckpointError(f"{name} does not fit float16: a value is beyond 65504; use bfloat16 or float32")
    return found


def _write_configs(folder: Path, config: dict[str, Any], special: Special, dtype: torch.dtype) -> None:
    named = str(dtype).removeprefix("torch.")
    tokens = {"bos_token_id": special.bos, "eos_token_id": special.eos}
    # "torch_dtype" is the name that readers before transformers 4.56 know.
    write_json(folder / CONFIG, {**config, "dtype": named, "torch_dtype": named, **tokens, "use_cache": True})
    if not (folder / GENERATION).exists():
        found = {name: token for name, token in tokens.items() if token is not None}
        write_json(folder / GENERATION, {**found, "do_sample": False})
