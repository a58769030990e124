"""When is the next fault of a scenario due?

Driven by the event logs of the running job, never by the clock: a fault has a step, and it waits until the victim of
the one before works again (a committed share of its own), so that faults stay apart and somebody is always alive. The
decision is pure; ``ChaosDriver`` only keeps what the events said, on the launcher's main thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from configs.run_folder import Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """SIGKILL of all ranks of ``group`` once ``step`` is committed."""

    group: str
    step: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What the logs have told: the last committed step, the groups that had a share in it, each group's incarnation,
    and the groups struck, as (group, incarnation), whose successor has not had a share yet."""

    step: int = 0
    sharing: frozenset[str] = frozenset()
    incarnations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    away: frozenset[tuple[str, int]] = frozenset()


def due(plan: Sequence[Strike], seen: Seen) -> tuple[Strike | None, str]:
    """The strike to make now out of those not yet made (in order), and why it is, or is not, one."""
    if not plan:
        return None, "nothing left to do"
    strike = plan[0]
    if seen.step < strike.step:
        return None, f"{strike.group} is struck at step {strike.step}"
    if seen.away:
        return None, f"waiting for {', '.join(sorted(group for group, _ in seen.away))} to work again"
    if strike.group not in seen.sharing:
        return None, f"{strike.group} has no share at step {seen.step}"
    return strike, f"step {seen.step} is committed and {strike.group} works"


def observe(seen: Seen, writer: str, event: Event) -> Seen:
    """What is known after one more event of a group's log."""
    if event.get("event") != "commit":
        return seen
    own = int(event.get("incarnation") or 0)
    shares = event.get("shares") or {}
    step = int(event.get("step", 0))
    newer = step >= seen.step
    # A dead incarnation's last record may be read after its death: only a younger one's share means "works again".
    back = {(group, struck) for group, struck in seen.away if group == writer and own > struck and shares.get(group)}
    return Seen(
        step=step if newer else seen.step,
        sharing=frozenset(group for group, ids in shares.items() if ids) if newer else seen.sharing,
        incarnations={**seen.incarnations, writer: max(own, seen.incarnations.get(writer, 0))},
        away=seen.away - back,
    )


class ChaosDriver:
    """Carries a plan out. ``strike(group, step)`` makes a fault and says whether it could."""

    def __init__(self, plan: Sequence[Strike], *, strike: Callable[[str, int], bool]) -> None:
        self._plan = list(plan)
        self._strike = strike
        self._seen = Seen()

    def take(self, writer: str, event: Event) -> None:
        """Follow the event logs; strikes when one is due."""
        self._seen = observe(self._seen, writer, event)
        found, _ = due(self._plan, self._seen)
        if found is not None and self._strike(found.group, self._seen.step):
            self._plan.remove(found)
            victim = (found.group, self._seen.incarnations.get(found.group, 0))
            self._seen = dataclasses.replace(self._seen, away=self._seen.away | {victim})
