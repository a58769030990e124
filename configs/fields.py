"""What a section of the config is made of, and what a key can be to this trainer.

Sections are strict (a string is no number), closed (an unknown key is an error) and frozen. A key that is known from
torchtitan but does nothing here carries a mark, so that a dry run can say so; everything unmarked is used. Only the
schema modules and the loader look at the marks.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A TOML table."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


@dataclasses.dataclass(frozen=True)
class NoEquivalent:
    """The key parses and does nothing, because what it controls does not exist here or is always so."""

    why: str


@dataclasses.dataclass(frozen=True)
class Later:
    """The key belongs to a feature that is not there yet. It acts only through a gate that is refused elsewhere."""

    feature: str


@dataclasses.dataclass(frozen=True)
class Alias:
    """The key is another name of ``target`` (dotted), which takes its value times ``scale`` unless it is ``unset``."""

    target: str
    unset: object = None
    scale: float | None = None


# A TOML array becomes a tuple, which strict mode would refuse; its items stay strict enough (a number is no string).
Names = Annotated[tuple[str, ...], Field(strict=False)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)]
NestedNames = Annotated[tuple[Names, ...], Field(strict=False)]

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Members = Annotated[int, Field(ge=1, le=100_000)]
"""Groups, or processes: bounded so that a typing error is one, and not an endless loop over them."""
Seconds = Annotated[float, Field(ge=0, le=1e7)]
SomeSeconds = Annotated[float, Field(gt=0, le=1e7)]
"""A time limit: at most about four months."""
Ratio = Annotated[float, Field(ge=0, le=1)]
