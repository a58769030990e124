"""What is the learning rate of step s?

A pure function of the committed step and the config, so a heal, a restore or a discarded attempt cannot leave it stale:
nobody keeps a scheduler's history. Warmup, then stable, then decay, with torchtitan 0.2's numbers: the first ``warmup``
updates rise linearly to the base rate; the last ``decay_ratio`` of the steps fall towards ``min_factor``, which a step
after the last one would reach, so the last update still moves; without a decay ratio all steps after warmup decay.
"""

from __future__ import annotations

import dataclasses
import math

from configs.schema import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of a run."""

    base: float
    steps: int
    warmup: int
    decay_ratio: float | None
    decay_type: str
    """linear, sqrt or cosine"""
    min_factor: float

    @property
    def decay_steps(self) -> int:
        after_warmup = self.steps - self.warmup
        if self.decay_ratio is None:
            return max(after_warmup, 0)
        return min(round(self.steps * self.decay_ratio), max(after_warmup, 0))

    def at(self, step: int) -> float:
        """Learning rate of the update that leads from ``step`` to ``step + 1``."""
        return self.base * self._factor(step)

    def _factor(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        start = self.steps - self.decay_steps + 1
        if step < start or self.decay_steps == 0:
            return 1.0
        progress = min(1.0, (step - start + 1) / self.decay_steps)
        if self.decay_type == "linear":
            shape = 1.0 - progress
        elif self.decay_type == "sqrt":
            shape = 1.0 - math.sqrt(progress)
        else:
            shape = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_factor + (1.0 - self.min_factor) * shape


def schedule_of(config: Config) -> Schedule:
    """The one that the config asks for."""
    return Schedule(
        base=config.optimizer.lr,
        steps=config.lr_scheduler.total_steps or config.training.steps,
        warmup=config.lr_scheduler.warmup_steps,
        decay_ratio=config.lr_scheduler.decay_ratio,
        decay_type=config.lr_scheduler.decay_type,
        min_factor=config.lr_scheduler.min_lr_factor,
    )
