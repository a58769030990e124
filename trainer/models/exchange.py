"""What must a model package know so that its weights can come from, and go to, the formats of others?

A ``ModelSpec`` carries one ``Exchange``, or none: then import and export refuse the model by name. Everything here is
data or pure; reading and writing files is the business of ``checkpointing``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from checkpointing.weights import WeightMap

Args = TypeVar("Args")
Shapes = Mapping[str, tuple[int, ...]]
"""Of whole parameters, by our names."""


class Exchange(abc.ABC, Generic[Args]):
    """The names, layouts and descriptions of others for the shapes of one model."""

    @abc.abstractmethod
    def fitted(self, args: Args, *, vocab_size: int) -> Args:
        """The same shape with another vocabulary."""

    @abc.abstractmethod
    def vocab_size(self, shapes: Shapes) -> int:
        """Of the model whose parameters these are. Raises KeyError when they are another model's."""

    @abc.abstractmethod
    def context(self, args: Args) -> int:
        """The longest context that the published model of this shape is meant for, where nothing else says it."""

    @abc.abstractmethod
    def hf_map(self, args: Args) -> WeightMap:
        """The pairing with Hugging Face's weights."""

    @abc.abstractmethod
    def hf_config(self, args: Args, *, seq_len: int) -> dict[str, Any]:
        """``config.json``; ``seq_len`` is the longest context that the model is meant for."""

    @abc.abstractmethod
    def hf_misfits(self, args: Args, config: Mapping[str, Any]) -> list[str]:
        """Where a ``config.json`` describes another model, in words. What weights' shapes say by themselves (the
        vocabulary) is left out."""

    @abc.abstractmethod
    def original_map(self, args: Args) -> WeightMap:
        """The pairing with the weights as their makers published them."""

    @abc.abstractmethod
    def original_misfits(self, args: Args, params: Mapping[str, Any]) -> list[str]:
        """The same as ``hf_misfits`` for the description beside original weights."""
