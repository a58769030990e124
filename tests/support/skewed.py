"""A rank of g1 that loses count: once, its clocks stay where they were though its group has committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ops.launch.ranks import RankSpec, run_trainer

AT_STEP = 5
MARK = "lost-count"


def run_skewed(config: Any, spec: RankSpec) -> None:
    """Be a rank; rank 1 of g1 loses count at step 5, the first time it gets there."""
    from trainer import transaction

    mark = Path(config.job.dump_folder) / MARK
    true_advance = transaction.advance

    def advance(clocks: Any, **more: Any) -> Any:
        if clocks.step == AT_STEP and not mark.exists():
            mark.touch()
            return clocks
        return true_advance(clocks, **more)

    if (spec.group, spec.rank) == ("g1", 1):
        transaction.advance = advance
    run_trainer(config, spec)
