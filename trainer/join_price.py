"""What do joins cost those who train? Seconds that a group waits for a newcomer's heal, above its usual waits.

A heal is free where the others' computing hides it. What it does not hide shows as longer waits for the quorum, its
channel and the reduction, in the attempt that seats the healer. Asked by the transaction at each commit; clockless.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from trainer.phases import Phase

WAITS = (Phase.QUORUM, Phase.HEAL, Phase.REDUCE)
_RECENT = 16


class JoinPrice:
    """One group's meter."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_RECENT)

    def of(self, phases: Mapping[str, float], *, healing: bool, behind: bool) -> float | None:
        """Seconds that joins cost this group in a committed attempt.

        Args:
            phases: seconds by phase of the attempt.
            healing: somebody healed in it.
            behind: this group was one of them: it paid nothing, it is the price.

        Returns None where it cannot be told: for the healer itself, and before there is a usual wait to compare with.
        """
        waited = sum(phases.get(phase.value, 0.0) for phase in WAITS)
        if behind:
            return None
        if not healing:
            self._usual.append(waited)
            return 0.0
        return max(waited - statistics.median(self._usual), 0.0) if self._usual else None
