"""Every time limit of a run, derived from one knob and from what the run has been seen to take.

``fault_tolerance.failure_detection_s`` is the knob. A limit that is set in the config counts as set. The order between
them is what makes recovery work at all (a backstop that fires before the thing it backs up ends healthy groups), so it
is checked at the start, and the table is printed. Pure; the seat, the lighthouse client and the transfer take theirs.
"""

from __future__ import annotations

import dataclasses

from configs.schema import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit, seconds, with where it comes from."""

    seconds: float
    reason: str
    set_by: str | None = None
    """The key that sets it; None where it is derived."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeouts:
    """All limits of a run, seconds."""

    failure_detection: Limit
    transfer_stall: Limit
    heal: Limit
    collective: Limit
    start_wait: Limit
    first_step: Limit
    quorum: Limit

    @property
    def failure_detection_s(self) -> float:
        """Silence after which a host is dead."""
        return self.failure_detection.seconds

    @property
    def pulse_s(self) -> float:
        """How often a group gives a sign of life: several times within the detection time."""
        return self.failure_detection.seconds / 5

    @property
    def transfer_stall_s(self) -> float:
        """Time without a byte after which a heal source is given up and another one used."""
        return self.transfer_stall.seconds

    @property
    def heal_limit_s(self) -> float:
        """How long a heal may keep the others waiting before the healer is given up."""
        return self.heal.seconds

    @property
    def collective_timeout_s(self) -> float:
        """A collective's own timeout: the backstop when no notice of a loss comes."""
        return self.collective.seconds

    @property
    def start_wait_s(self) -> float:
        """How long the first quorum waits for the configured number of groups."""
        return self.start_wait.seconds

    @property
    def first_step_limit_s(self) -> float:
        """From an incarnation's start to its first commit: building, compiling, rehearsing, healing."""
        return self.first_step.seconds

    @property
    def quorum_timeout_s(self) -> float:
        """How long a group waits for a quorum before it ends as one that lost it."""
        return self.quorum.seconds

    def table(self) -> str:
        """The limits as text, shortest first, one a line."""
        rows = sorted(((f.name, getattr(self, f.name)) for f in dataclasses.fields(self)), key=lambda r: r[1].seconds)
        return "\n".join(
            f"{name:<18}{limit.seconds:>10.1f} s  {'set by ' + limit.set_by if limit.set_by else limit.reason}"
            for name, limit in rows
        )


def derive(config: Config, *, step_s: float | None = None, heal_s: float | None = None) -> Timeouts:
    """The limits for a run whose slowest recent step and heal took so many seconds.

    None: not yet seen. A rehearsal's time is a good first guess of a step's, and one is needed where a step takes
    longer than 3 s.
    """
    ft = config.fault_tolerance
    detection = ft.failure_detection_s
    step, heal = step_s or 0.0, heal_s or 0.0
    prefix = "fault_tolerance."
    collective = _limit(
        ft.collective_timeout_s,
        prefix + "collective_timeout_s",
        max(30.0, 10 * detection, 10 * step, 3 * heal),
        "the most of 30 s, 10 detections, 10 steps, 3 heals",
    )
    start_wait = _limit(ft.start_wait_s, prefix + "start_wait_s", max(30.0, 10 * detection), "30 s or 10 detections")
    first_step = _limit(
        ft.first_step_limit_s,
        prefix + "first_step_limit_s",
        max(600.0, 4 * collective.seconds),
        "600 s or 4 collective timeouts",
    )
    quorum = _limit(
        ft.quorum_timeout_s,
        prefix + "quorum_timeout_s",
        max(3600.0, 2 * (first_step.seconds + start_wait.seconds)),
        "an hour, or twice the first step and the start wait",
    )
    # Before those who wait for the healing peer in a collective give up.
    stall = min(max(5.0, 2 * detection), (detection + collective.seconds) / 2)
    heal_limit = _limit(
        ft.heal_limit_s,
        prefix + "heal_limit_s",
        max(0.8, (stall / collective.seconds + 1) / 2) * collective.seconds,
        "most of a collective's time",
    )
    return Timeouts(
        failure_detection=Limit(seconds=detection, reason="the knob", set_by=prefix + "failure_detection_s"),
        transfer_stall=Limit(seconds=stall, reason="5 s or 2 detections, before a collective ends"),
        heal=heal_limit,
        collective=collective,
        start_wait=start_wait,
        first_step=first_step,
        quorum=quorum,
    )


def violations(timeouts: Timeouts) -> list[tuple[tuple[str, ...], str]]:
    """Pairs of limits in the wrong order: (the keys involved, what was expected). Empty for anything derived."""
    t = timeouts
    order = (
        ("failure_detection", "collective", "a collective ends before the loss of a peer is noticed"),
        ("heal", "collective", "the collectives of those who wait for a healer end before it is given up"),
        ("collective", "first_step", "the first step ends before one of its collectives may"),
        ("start_wait", "quorum", "a group gives up while the first quorum still waits for the others"),
        ("first_step", "quorum", "a group gives up while a peer may still be building"),
    )
    found: list[tuple[tuple[str, ...], str]] = []
    for low, high, otherwise in order:
        lower, upper = getattr(t, low), getattr(t, high)
        if lower.seconds >= upper.seconds:
            # A derived limit names the knob, because that is what moves it.
            keys = (upper.set_by, lower.set_by, "fault_tolerance.failure_detection_s")
            expected = f"expected {low} ({lower.seconds:g} s) < {high} ({upper.seconds:g} s); else {otherwise}"
            found.append((tuple(dict.fromkeys(k for k in keys if k)), expected))
    return found


def _limit(chosen: float | None, key: str, derived: float, reason: str) -> Limit:
    if chosen is not None:
        return Limit(seconds=chosen, reason="", set_by=key)
    return Limit(seconds=derived, reason=reason)
