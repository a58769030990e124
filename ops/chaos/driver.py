"""When is the next fault of a scenario due?

Driven by the event logs of the running job: a fault has a step, and unless it says otherwise it waits until the victim
of the one before works again (a committed share of its own), so that faults stay apart and somebody is always alive. A
fault of a trace or of a failure rate has a moment instead, in seconds from the first commit. The decisions are pure;
``ChaosDriver`` only keeps what the events said, on the launcher's main thread.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence

from configs.failpoints import parse
from configs.run_folder import Event


class Target(enum.StrEnum):
    """Who is struck."""

    RANK = "rank"
    GROUP = "group"
    NODE = "node"
    LIGHTHOUSE = "lighthouse"
    NETWORK = "network"


DEADLY = frozenset({"kill", "stop", "leave", "drain"})
"""What takes a group out of the run until its successor, or itself, works again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """One fault from outside, by default SIGKILL of all ranks of ``group`` once ``step`` is committed."""

    target: Target = Target.GROUP
    group: str | None = None
    """None: the lighthouse's own, or the paths of all groups to it."""
    rank: int | None = None
    """None: every rank."""
    action: str = "kill"
    seconds: float | None = None
    """How long it lasts; None: for good."""
    amount: float | None = None
    """Seconds of a delay, bytes per second of a rate."""
    step: int | None = None
    at_s: float | None = None
    """Seconds after the first commit; None: it has a step."""
    apart: bool = True
    """Waits until whoever was struck before works again."""

    def __str__(self) -> str:
        when = f"at step {self.step}" if self.at_s is None else f"after {self.at_s:.1f} s"
        lasts = "" if self.seconds is None else f" for {self.seconds:g} s"
        how = "" if self.amount is None else f" {self.amount:g}"
        return f"{when} {self.action}{how} {self.name}{lasts}"

    @property
    def name(self) -> str:
        """Who, for people."""
        whole = self.group if self.group is not None else "all groups"
        match self.target:
            case Target.LIGHTHOUSE:
                return "the lighthouse"
            case Target.NETWORK:
                return f"the network of {whole}"
            case Target.RANK:
                return f"rank {self.rank} of {whole}"
            case Target.NODE:
                return f"the node of {whole}"
            case _:
                return whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What the logs have told: the last committed step, the groups that had a share in it, each group's incarnation,
    the groups struck, as (group, incarnation), whose successor has not had a share yet, when the first commit was, and
    the failpoints that have fired."""

    step: int = 0
    sharing: frozenset[str] = frozenset()
    incarnations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    away: frozenset[tuple[str, int]] = frozenset()
    began: float | None = None
    fired: frozenset[str] = frozenset()
    quiet: int = 0
    """Steps committed by one and the same set of groups since the last fault."""
    newest: str = ""
    """The lineage of the newest commit."""


def due(plan: Sequence[Strike], seen: Seen, *, now: float = 0.0) -> tuple[Strike | None, str]:
    """A strike to make now out of those not yet made, and why it is, or is not, one. Those with a step are made in
    their order; those with a moment (``now`` is in unix seconds) when it has come."""
    for timed in plan:
        if timed.at_s is not None and seen.began is not None and now >= seen.began + timed.at_s:
            return timed, f"{timed.at_s:.1f} s have passed"
    strike = next((stepped for stepped in plan if stepped.at_s is None), None)
    if strike is None:
        return None, "waiting for the time of the next" if plan else "nothing left to do"
    if seen.step < (strike.step or 0):
        return None, f"{strike.name} is struck at step {strike.step}"
    if strike.apart and seen.away:
        return None, f"waiting for {', '.join(sorted(group for group, _ in seen.away))} to work again"
    if strike.apart and strike.group is not None and strike.group not in seen.sharing:
        return None, f"{strike.group} has no share at step {seen.step}"
    return strike, f"step {seen.step} is committed and {strike.name} works"


def observe(seen: Seen, writer: str, event: Event) -> Seen:
    """What is known after one more event of a group's log."""
    if event.get("event") == "fault":
        victim = (writer, int(event.get("incarnation") or 0))
        away = seen.away | ({victim} if _takes_away(event) else set())
        return dataclasses.replace(seen, fired=seen.fired | {str(event.get("failpoint"))}, away=away, quiet=0)
    if event.get("event") == "discard":
        return dataclasses.replace(seen, quiet=0)
    if event.get("event") != "commit":
        return seen
    own = int(event.get("incarnation") or 0)
    shares = event.get("shares") or {}
    step = int(event.get("step", 0))
    newer = step >= seen.step
    # A dead incarnation's last record may be read after its death: only a younger one's share means "works again".
    back = {(group, struck) for group, struck in seen.away if group == writer and own > struck and shares.get(group)}
    sharing = frozenset(group for group, ids in shares.items() if ids)
    fresh = str(event.get("lineage") or step) != seen.newest
    return dataclasses.replace(
        seen,
        step=step if newer else seen.step,
        sharing=sharing if newer else seen.sharing,
        incarnations={**seen.incarnations, writer: max(own, seen.incarnations.get(writer, 0))},
        away=seen.away - back,
        began=seen.began if seen.began is not None else float(event.get("t") or 0.0),
        quiet=(seen.quiet + 1 if sharing == seen.sharing else 0) if fresh else seen.quiet,
        newest=str(event.get("lineage") or step),
    )


def _takes_away(fault: Event) -> bool:
    """Whether a failpoint's group is gone with it. One that is stopped for a time may come back as it is."""
    action, point = fault.get("action"), str(fault.get("failpoint"))
    return action in ("kill", "exit", "hang") or (action == "stop" and point.endswith("stop"))


def settled(seen: Seen, *, left: Sequence[Strike], failpoints: Sequence[str], groups: int, rest: int) -> bool:
    """Whether every fault has been made, all ``groups`` work, and ``rest`` steps have been committed since."""
    everybody = len(seen.sharing) >= groups and not seen.away
    fired = all(point in seen.fired or _missed(point, seen.step) for point in failpoints)
    return not left and fired and everybody and seen.quiet >= rest


def _missed(point: str, step: int) -> bool:
    """Whether the step at which a failpoint would have struck is past."""
    at = parse(point).step
    return at is not None and at < step


class ChaosDriver:
    """Carries a plan out. ``strike(strike, step)`` makes a fault and says whether it could."""

    def __init__(self, plan: Sequence[Strike], *, strike: Callable[[Strike, int], bool]) -> None:
        self._plan = list(plan)
        self._strike = strike
        self._seen = Seen()

    def take(self, writer: str, event: Event) -> None:
        """Follow the event logs; strikes when one is due."""
        self._seen = observe(self._seen, writer, event)
        self.look(float(event.get("t") or 0.0))

    def look(self, now: float) -> None:
        """Strike what is due at a moment (unix seconds)."""
        while True:
            found, _ = due(self._plan, self._seen, now=now)
            if found is None or not self._strike(found, self._seen.step):
                return
            self._plan.remove(found)
            away = self._seen.away
            if found.action in DEADLY and found.group is not None and not (found.action == "stop" and found.seconds):
                away |= {(found.group, self._seen.incarnations.get(found.group, 0))}
            self._seen = dataclasses.replace(self._seen, away=away, quiet=0)

    def settled(self, *, failpoints: Sequence[str], groups: int, rest: int) -> bool:
        """Whether nothing more will happen."""
        return settled(self._seen, left=self._plan, failpoints=failpoints, groups=groups, rest=rest)
