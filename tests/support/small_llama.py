"""A Llama 3 small enough for any test, its weights, and text for it."""

from __future__ import annotations

import torch

from trainer.models import registry
from trainer.models.llama3.args import Llama3Args
from trainer.models.llama3.model import Llama3

SPEC = registry.get("llama3")
SMALL = Llama3Args(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, vocab_size=50)


def built(args: Llama3Args = SMALL, *, seq_len: int = 32, seed: int = 7) -> Llama3:
    """The model as the trainer makes it: on meta, given memory, initialised."""
    with torch.device("meta"):
        model = SPEC.build(args, seq_len=seq_len)
    model.to_empty(device="cpu")
    SPEC.init_weights(model, seed=seed)
    return model


def tokens(batch: int = 2, seq: int = 16, *, args: Llama3Args = SMALL) -> torch.Tensor:
    """Random text: int64 [batch, seq], always the same."""
    return torch.randint(args.vocab_size, (batch, seq), generator=torch.Generator().manual_seed(3))
