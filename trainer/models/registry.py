"""Which models can be trained, and what does the trainer need to know of each?

A model is a package under ``trainer.models`` that exports ``SPEC``, a ``ModelSpec``. Everything outside that package
speaks of it through this class alone, so a new model is a new folder and nothing else. Called by the composition root
and by commands that reason about sizes.
"""

from __future__ import annotations

import abc
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from torch import nn

import trainer.models
from trainer.models.exchange import Exchange

Args = TypeVar("Args")


class ModelSpec(abc.ABC, Generic[Args]):
    """What a model package offers. ``Args`` is its own frozen description of a shape."""

    name: str
    flavors: Mapping[str, Args]
    exchange: Exchange[Args] | None = None
    """How weights are imported and exported; None: not at all."""

    def flavor(self, name: str) -> Args:
        """The shape called ``name``. Raises ValueError that lists the known ones."""
        if name not in self.flavors:
            raise ValueError(f"model {self.name} has no flavor {name!r}; known: {', '.join(self.flavors)}")
        return self.flavors[name]

    @abc.abstractmethod
    def build(self, args: Args, *, seq_len: int, vocab_size: int | None = None) -> nn.Module:
        """The model, on the default device (meta works). ``vocab_size`` replaces the flavor's own.

        Its ``forward(tokens, mask=None)`` takes int64 [batch, seq] with seq <= ``seq_len`` and returns logits
        [batch, seq, vocab] in the dtype of its parameters. ``mask`` is bool [batch or 1, 1, seq, seq], True where a
        query may look at a key; without one attention is causal.
        """

    @abc.abstractmethod
    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The modules that FSDP wraps one by one, in forward order, before the root."""

    @abc.abstractmethod
    def init_weights(self, model: nn.Module, *, seed: int) -> None:
        """Fill parameters (plain or DTensor, whole model or part of it) and buffers after ``to_empty``.

        The values are a function of (seed, parameter name) alone; no collectives. Raises ValueError on meta tensors.
        """

    @abc.abstractmethod
    def num_params(self, args: Args, *, vocab_size: int | None = None) -> int:
        """Trainable numbers, tied ones counted once."""

    @abc.abstractmethod
    def flops_per_token(self, args: Args, *, seq_len: int, vocab_size: int | None = None) -> int:
        """Floating-point operations of forward and backward for one token, recomputation not counted."""


def names() -> list[str]:
    """Names of the models there are."""
    return sorted(found.name for found in pkgutil.iter_modules(trainer.models.__path__) if found.ispkg)


def get(name: str) -> ModelSpec[Any]:
    """The model called ``name``. Raises ValueError that lists the known ones."""
    if name not in names():
        raise ValueError(f"no model is called {name!r}; known: {', '.join(names())}")
    spec = importlib.import_module(f"trainer.models.{name}").SPEC
    assert isinstance(spec, ModelSpec)
    return spec
