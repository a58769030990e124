"""What a group and the lighthouse say to each other, as plain frozen values.

The lighthouse decides over them, its wire format carries them, the seat obeys them. Neither side imports the other.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from configs.words import DepartureCause, Lineage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """What the gateway must know of a run's config. Groups bring it when they join; it is the same for all."""

    run: str
    config_digest: str
    groups: int
    """Groups the run was configured with: the first quorum waits for so many, up to ``start_wait_s``."""
    min_groups: int
    start_wait_s: float
    failure_detection_s: float
    steps: int
    first_step_limit_s: float = 600.0
    """Until an incarnation's first attempt has ended nobody is called hung before this."""
    heal_limit_s: float = 600.0
    """A heal that keeps others waiting for longer ends with the burial of the healer."""
    join_interval_s: float = 0.0
    """Joins are at least so far apart; those who ask together join together."""
    exact: bool = False
    """Gradients are summed exactly: groups whose bits could differ do not belong together."""
    software: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Versions of the libraries that compute, by name."""
    machine: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What else decides the bits of a gradient: instruction set or GPU, threads of a rank."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Voucher:
    """What a group can show only once it has built everything; brought before it first asks for a quorum."""

    store: str
    """Digest of the token store."""
    golden: str = ""
    """Digest of the gradient of one fixed microbatch at the seed's weights; empty where bits are not compared."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seated:
    """What the gateway answers to a join: who this incarnation is."""

    incarnation: int
    epoch: int
    ended: Lineage | None = None
    """Set when the run has already reached its recorded end: exit 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What a group brings when it asks for a quorum. All its ranks have agreed on it."""

    group: str
    incarnation: int
    lineage: Lineage
    void: bool
    """The state must not be used: lineage is only a claim about what is being replaced."""
    drain: bool = False
    finished: bool = False
    """The state is at the end of the run: the next quorum closes it."""
    fresh: bool = False
    """The communicator of the last attempt is broken: a fresh quorum id is needed even if the members are the same."""
    disputed: bool = False
    """With void: the participants' checksums differed without a majority, so nobody's state of ``lineage`` counts."""
    disk: tuple[Lineage, ...] = ()
    """With void: checkpoints that verify on the disk this group sees."""
    needs_state: bool = False
    """With void: it must not be made from the seed, for its config asks for a state that it cannot bring."""
    transfer: tuple[str, ...] = ()
    """``host:port`` of each rank's state server, in rank order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """What a group can bring to a start if nobody current is alive."""

    disk: tuple[Lineage, ...] = ()
    unmet: str = ""
    """Why it cannot bring what its config asks for: a matter only if nobody else can."""


class Kind(enum.StrEnum):
    """What a grant is for."""

    TRAIN = "train"
    CLOSING = "closing"
    """The last step is committed: the first up-to-date member publishes it and reports the end."""
    RELEASE = "release"
    """A drain is granted: this group is not seated and leaves."""
    LEAVE = "leave"
    """A drain of the last group: it saves first, then leaves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A seated group."""

    group: str
    incarnation: int
    transfer: tuple[str, ...] = ()

    @property
    def replica_id(self) -> str:
        """Its name on torchft's wire."""
        return replica_id(self.group, self.incarnation)


def replica_id(group: str, incarnation: int) -> str:
    """``group:incarnation``, the id under which an incarnation speaks torchft's protocol."""
    return f"{group}:{incarnation}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """The gateway's answer to a claim: the quorum of one attempt."""

    attempt: int
    """Numbered by the gateway, never given twice."""
    quorum_id: int
    kind: Kind
    members: tuple[Member, ...]
    """In participant-rank order."""
    up_to_date: tuple[str, ...]
    """Groups that hold ``current``; the other members heal."""
    current: Lineage
    restore: Lineage | None = None
    """Set when nobody current is alive: the up-to-date members take this state from disk (or from the seed) first."""
    reason: str = ""
    fences: tuple[Lineage, ...] = ()
    """Of every rollback: what has a greater step and a smaller quorum id than one of them was rolled back, for ever."""

    @property
    def healing(self) -> tuple[str, ...]:
        """Members that heal, in rank order."""
        current = frozenset(self.up_to_date)
        return tuple(m.group for m in self.members if m.group not in current)

    @property
    def names(self) -> tuple[str, ...]:
        """Group names in rank order."""
        return tuple(m.group for m in self.members)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankPulse:
    """Where one rank stands, as its rank 0 last heard. Ages, not moments: clocks differ between hosts."""

    attempt: int
    phase: str
    age_s: float
    """Seconds in this phase."""
    silent_s: float = 0.0
    """Seconds since rank 0 heard of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pulse:
    """A group's sign of life: sent many times within ``failure_detection_s`` while its Watch stream is open."""

    ranks: tuple[RankPulse, ...] = ()
    """In rank order; empty from a watcher that trains nothing."""
    usual_s: float | None = None
    """The longest of this incarnation's recent attempts, seconds; None before the first."""
    step: int = 0
    tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dead:
    """An incarnation that was buried, or left."""

    group: str
    incarnation: int
    cause: DepartureCause
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """The state of the world as the gateway tells it over a Watch stream: always the whole of it, so that a late or a
    second reader misses nothing (level-triggered)."""

    epoch: int
    dead: tuple[Dead, ...] = ()
    """Members of the last grants that are buried or have left."""
    over: tuple[int, ...] = ()
    """Attempts that are over because a member moved on without their commit."""
    buried: str | None = None
    """Set to the reason when the reader itself is buried: it exits 7."""
    ended: Lineage | None = None
    """The run's recorded end: its readers exit 0."""


class Refused(Exception):
    """The gateway does not admit this group, or will not seat it; the reason is for people."""


class QuorumLost(Refused):
    """Fewer groups than the run needs have asked for too long: exit 3."""


class Buried(Exception):
    """This incarnation is declared lost, for ever: it exits 7."""


class Unreachable(Exception):
    """The gateway does not answer. Callers loop until it is back."""


class Ended(Exception):
    """The run has reached its recorded end: whoever comes later exits 0."""

    def __init__(self, lineage: Lineage) -> None:
        super().__init__(str(lineage))
        self.lineage = lineage
