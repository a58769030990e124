"""What a gateway could say, made by hand: grants, notices and the seating that goes with them."""

from __future__ import annotations

from configs.protocol import Dead, Grant, Kind, Member, Notice
from configs.words import DepartureCause, Lineage, join_quorum_id
from replica_groups.seat import Seating

EPOCH = 17


def quorum_id(running: int) -> int:
    return join_quorum_id(epoch=EPOCH, running=running)


def grant(
    *groups: str,
    attempt: int = 1,
    running: int = 1,
    healing: tuple[str, ...] = (),
    current: Lineage | None = None,
    kind: Kind = Kind.TRAIN,
    restore: Lineage | None = None,
) -> Grant:
    """The quorum of ``groups`` (g0 alone by default), each with one rank that serves at ``GROUP:0``."""
    names = groups or ("g0",)
    return Grant(
        attempt=attempt,
        quorum_id=quorum_id(running),
        kind=kind,
        members=tuple(Member(group=g, incarnation=1, transfer=(f"{g}:0", f"{g}:1")) for g in names),
        up_to_date=tuple(g for g in names if g not in healing),
        current=current or Lineage(0, 0),
        restore=restore,
    )


def seating(made: Grant, group: str = "g0") -> Seating:
    return Seating(grant=made, rank=made.names.index(group), store_address="")


def death(*groups: str, incarnation: int = 1) -> Notice:
    """The gateway has buried these groups."""
    return Notice(
        epoch=EPOCH,
        dead=tuple(Dead(group=g, incarnation=incarnation, cause=DepartureCause.EXITED) for g in groups),
    )
