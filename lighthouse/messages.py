"""How do the values of configs/protocol.py travel? To and from the messages of phalanx.proto, both ends in one place.

Called by the gateway's service and by the client. Nothing is decided here.
"""

from __future__ import annotations

from configs.protocol import (
    Buried,
    Claim,
    Dead,
    Ended,
    Grant,
    Kind,
    Member,
    Notice,
    Pulse,
    QuorumLost,
    RankPulse,
    Refused,
    Seated,
    Terms,
    Voucher,
)
from configs.words import DepartureCause, Lineage
from lighthouse.protos import phalanx_pb2 as pb


def lineage_to(lineage: Lineage) -> pb.Lineage:
    return pb.Lineage(step=lineage.step, quorum_id=lineage.quorum_id)


def lineage_from(message: pb.Lineage) -> Lineage:
    return Lineage(message.step, message.quorum_id)


def terms_to(terms: Terms) -> pb.Terms:
    return pb.Terms(
        run=terms.run,
        config_digest=terms.config_digest,
        groups=terms.groups,
        min_groups=terms.min_groups,
        start_wait_s=terms.start_wait_s,
        failure_detection_s=terms.failure_detection_s,
        first_step_limit_s=terms.first_step_limit_s,
        join_interval_s=terms.join_interval_s,
        exact=terms.exact,
        software=terms.software,
        machine=terms.machine,
        heal_limit_s=terms.heal_limit_s,
        steps=terms.steps,
    )


def terms_from(message: pb.Terms) -> Terms:
    return Terms(
        run=message.run,
        config_digest=message.config_digest,
        groups=message.groups,
        min_groups=message.min_groups,
        start_wait_s=message.start_wait_s,
        failure_detection_s=message.failure_detection_s,
        first_step_limit_s=message.first_step_limit_s,
        join_interval_s=message.join_interval_s,
        exact=message.exact,
        software=dict(message.software),
        machine=dict(message.machine),
        heal_limit_s=message.heal_limit_s,
        steps=message.steps,
    )


def voucher_to(group: str, incarnation: int, voucher: Voucher) -> pb.VouchRequest:
    return pb.VouchRequest(group=group, incarnation=incarnation, store=voucher.store, golden=voucher.golden)


def voucher_from(message: pb.VouchRequest) -> Voucher:
    return Voucher(store=message.store, golden=message.golden)


def seated_to(seated: Seated) -> pb.Seated:
    return pb.Seated(incarnation=seated.incarnation, epoch=seated.epoch, ended=_maybe_lineage_to(seated.ended))


def seated_from(message: pb.Seated) -> Seated:
    return Seated(
        incarnation=message.incarnation,
        epoch=message.epoch,
        ended=lineage_from(message.ended) if message.HasField("ended") else None,
    )


def claim_to(claim: Claim) -> pb.AskRequest:
    return pb.AskRequest(
        group=claim.group,
        incarnation=claim.incarnation,
        lineage=lineage_to(claim.lineage),
        void=claim.void,
        drain=claim.drain,
        finished=claim.finished,
        fresh=claim.fresh,
        disputed=claim.disputed,
        disk=[lineage_to(lineage) for lineage in claim.disk],
        transfer=claim.transfer,
        needs_state=claim.needs_state,
    )


def claim_from(message: pb.AskRequest) -> Claim:
    return Claim(
        group=message.group,
        incarnation=message.incarnation,
        lineage=lineage_from(message.lineage),
        void=message.void,
        drain=message.drain,
        finished=message.finished,
        fresh=message.fresh,
        disputed=message.disputed,
        disk=tuple(lineage_from(lineage) for lineage in message.disk),
        transfer=tuple(message.transfer),
        needs_state=message.needs_state,
    )


def grant_to(grant: Grant) -> pb.Grant:
    return pb.Grant(
        attempt=grant.attempt,
        quorum_id=grant.quorum_id,
        kind=grant.kind.value,
        members=[pb.Member(group=m.group, incarnation=m.incarnation, transfer=m.transfer) for m in grant.members],
        up_to_date=grant.up_to_date,
        current=lineage_to(grant.current),
        restore=_maybe_lineage_to(grant.restore),
        reason=grant.reason,
        fences=[lineage_to(fence) for fence in grant.fences],
    )


def grant_from(message: pb.Grant) -> Grant:
    return Grant(
        attempt=message.attempt,
        quorum_id=message.quorum_id,
        kind=Kind(message.kind),
        members=tuple(
            Member(group=m.group, incarnation=m.incarnation, transfer=tuple(m.transfer)) for m in message.members
        ),
        up_to_date=tuple(message.up_to_date),
        current=lineage_from(message.current),
        restore=lineage_from(message.restore) if message.HasField("restore") else None,
        reason=message.reason,
        fences=tuple(lineage_from(fence) for fence in message.fences),
    )


def pulse_to(group: str, incarnation: int, pulse: Pulse) -> pb.Pulse:
    return pb.Pulse(
        group=group,
        incarnation=incarnation,
        ranks=[pb.RankPulse(attempt=r.attempt, phase=r.phase, age_s=r.age_s, silent_s=r.silent_s) for r in pulse.ranks],
        usual_s=pulse.usual_s or 0.0,
        step=pulse.step,
        tokens=pulse.tokens,
    )


def pulse_from(message: pb.Pulse) -> Pulse:
    return Pulse(
        ranks=tuple(
            RankPulse(attempt=r.attempt, phase=r.phase, age_s=r.age_s, silent_s=r.silent_s) for r in message.ranks
        ),
        usual_s=message.usual_s or None,
        step=message.step,
        tokens=message.tokens,
    )


def notice_to(notice: Notice) -> pb.Notice:
    return pb.Notice(
        epoch=notice.epoch,
        dead=[
            pb.Dead(group=d.group, incarnation=d.incarnation, cause=d.cause.value, reason=d.reason) for d in notice.dead
        ],
        over=notice.over,
        buried=notice.buried,
        ended=_maybe_lineage_to(notice.ended),
    )


def notice_from(message: pb.Notice) -> Notice:
    return Notice(
        epoch=message.epoch,
        dead=tuple(
            Dead(group=d.group, incarnation=d.incarnation, cause=DepartureCause(d.cause), reason=d.reason)
            for d in message.dead
        ),
        over=tuple(message.over),
        buried=message.buried if message.HasField("buried") else None,
        ended=lineage_from(message.ended) if message.HasField("ended") else None,
    )


def raise_denial(reply: pb.AskReply | pb.VouchReply) -> None:
    """Raises what an answer says other than yes: Buried, Ended, QuorumLost, Refused."""
    match reply.WhichOneof("answer"):
        case "buried":
            raise Buried(reply.buried.reason)
        case "ended":
            raise Ended(lineage_from(reply.ended))
        case "refused":
            raise (QuorumLost if reply.refused.quorum_lost else Refused)(reply.refused.reason)


def _maybe_lineage_to(lineage: Lineage | None) -> pb.Lineage | None:
    return None if lineage is None else lineage_to(lineage)
