"""What does an unmodified ``torchft.Manager`` claim? It speaks torchft's protocol alone, which has no lineages.

Somebody with the secret joins for it and holds its Watch stream; from then on each of its quorum requests stands for a
claim too. Its step is read as the lineage that the gateway granted for that step, so for such a group equal step is
equal state, as everywhere in torchft; whoever was not in the last quorum brings no more than a disk would. Pure; called
by the gateway and its service.
"""

from __future__ import annotations

from configs.protocol import Claim
from configs.words import SCRATCH, Lineage
from lighthouse.protos import torchft_pb2
from lighthouse.state import Participant, Stored
from lighthouse.waiting import Refused


def who_speaks(replica_id: str) -> Participant:
    """Of ``group:incarnation``, to which a Manager appends a UUID; or a participant that nobody has admitted."""
    group, _, rest = replica_id.partition(":")
    number = rest.partition(":")[0]
    return Participant(group, int(number) if number.isascii() and number.isdecimal() else 0)


def stranger(who: Participant, member: torchft_pb2.QuorumMember, stored: Stored) -> Refused | None:
    """Why a Manager may not speak for ``who``, if so."""
    if _managed(who, stored) or member.replica_id == str(who):
        return None
    return Refused(f"{member.replica_id} was not admitted here: {who} speaks for itself")


def claim_of(who: Participant, member: torchft_pb2.QuorumMember, stored: Stored) -> Claim | None:
    """What a Manager's request claims; None when the group claims for itself."""
    if not _managed(who, stored):
        return None
    lineage = _lineage_at(member.step, stored)
    taken_part = who in stored.known
    return Claim(
        group=who.group,
        incarnation=who.incarnation,
        lineage=lineage if taken_part else SCRATCH,
        void=not taken_part,
        fresh=member.commit_failures > 0,
        disk=() if taken_part or not member.step else (lineage,),
    )


def answer_for(replica_id: str, quorum: torchft_pb2.Quorum) -> torchft_pb2.Quorum:
    """The quorum as this requester must read it: with the id by which it knows itself."""
    who = who_speaks(replica_id)
    if replica_id == str(who):
        return quorum
    own = torchft_pb2.Quorum()
    own.CopyFrom(quorum)
    for member in own.participants:
        if member.replica_id == str(who):
            member.replica_id = replica_id
    return own


def _managed(who: Participant, stored: Stored) -> bool:
    return stored.managers.get(who.group) == who.incarnation


def _lineage_at(step: int, stored: Stored) -> Lineage:
    """The lineage that a Manager at ``step`` holds, if it was made here; else one that is nobody's."""
    if step == stored.granted.step:
        return stored.granted
    return Lineage(step, stored.last_quorum_id if step == stored.granted.step + 1 else 0)
