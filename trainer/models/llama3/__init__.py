"""Llama 3 (3, 3.1, 3.2): the model, its published shapes, and its mapping to Hugging Face's names."""

from __future__ import annotations

from torch import nn

from trainer.models.llama3 import args as shapes
from trainer.models.llama3.args import FLAVORS, Llama3Args
from trainer.models.llama3.foreign import Llama3Exchange
from trainer.models.llama3.model import Llama3
from trainer.models.registry import ModelSpec


class _Llama3Spec(ModelSpec[Llama3Args]):
    name = "llama3"
    flavors = FLAVORS
    exchange = Llama3Exchange()

    def build(self, args: Llama3Args, *, seq_len: int, vocab_size: int | None = None) -> Llama3:
        return Llama3(args.with_vocab(vocab_size), seq_len=seq_len)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(_ours(model).layers.values())

    def init_weights(self, model: nn.Module, *, seed: int) -> None:
        _ours(model).init_weights(seed=seed)

    def num_params(self, args: Llama3Args, *, vocab_size: int | None = None) -> int:
        return shapes.num_params(args.with_vocab(vocab_size))

    def flops_per_token(self, args: Llama3Args, *, seq_len: int, vocab_size: int | None = None) -> int:
        return shapes.flops_per_token(args.with_vocab(vocab_size), seq_len=seq_len)


def _ours(model: nn.Module) -> Llama3:
    assert isinstance(model, Llama3), f"{type(model).__name__} was not built here"
    return model


SPEC = _Llama3Spec()
