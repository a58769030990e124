"""What does the gateway say on the wire? The gRPC services phalanx.Control and torchft's LighthouseService.

Only translation: messages to values, the gateway's answers to messages and status codes. Heartbeats of torchft's
managers are answered here and go no further. torchft's clients cannot carry a secret, so their identity is bound to an
admitted incarnation instead. Served by server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from configs.protocol import Grant
from configs.words import RUNNING_BITS, DepartureCause
from lighthouse import messages
from lighthouse.admission import Later
from lighthouse.client import SECRET_KEY
from lighthouse.gateway import Gateway
from lighthouse.managers import answer_for, who_speaks
from lighthouse.members import Life
from lighthouse.once import Once
from lighthouse.protos import phalanx_pb2 as pb
from lighthouse.protos import phalanx_pb2_grpc, torchft_pb2, torchft_pb2_grpc
from lighthouse.state import Participant
from lighthouse.status import status
from lighthouse.waiting import Buried, Denial, Ended, LookAgain, Refused, Stopping

STOPPING = "the lighthouse is stopping"
_Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpcio ships no types


class ControlService(phalanx_pb2_grpc.ControlServicer):
    """phalanx.Control."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._granted = Once(_granted_to)

    async def Join(self, request: pb.JoinRequest, context: _Context) -> pb.JoinReply:  # noqa: N802
        life = Life(
            who=Participant(request.group, 0),
            life=request.life,
            pid=request.pid,
            ranks=tuple(request.ranks),
            host=request.host,
            manager=request.manager,
        )
        answer = self._gateway.join(messages.terms_from(request.terms), life, config=request.config)
        if isinstance(answer, Later):
            await context.abort(grpc.StatusCode.UNAVAILABLE, answer.reason)
            raise AssertionError("abort raises")
        if isinstance(answer, Refused):
            return pb.JoinReply(refused=pb.Refusal(reason=answer.reason))
        return pb.JoinReply(seated=messages.seated_to(answer))

    async def Vouch(self, request: pb.VouchRequest, context: _Context) -> pb.VouchReply:  # noqa: N802
        who, voucher = Participant(request.group, request.incarnation), messages.voucher_from(request)
        answer, epoch = self._gateway.vouch(who, voucher), self._gateway.state.epoch
        match answer:
            case Refused(reason=reason):
                return pb.VouchReply(refused=pb.Refusal(reason=reason), epoch=epoch)
            case Buried(reason=reason):
                return pb.VouchReply(buried=pb.Refusal(reason=reason), epoch=epoch)
            case Ended(lineage=lineage):
                return pb.VouchReply(ended=messages.lineage_to(lineage), epoch=epoch)
        return pb.VouchReply(epoch=epoch)

    async def Ask(self, request: pb.AskRequest, context: _Context) -> pb.AskReply:  # noqa: N802
        answer, epoch = await self._gateway.ask(messages.claim_from(request)), self._gateway.state.epoch
        match answer:
            case Refused(reason=reason, quorum_lost=lost):
                return pb.AskReply(refused=pb.Refusal(reason=reason, quorum_lost=lost), epoch=epoch)
            case Buried(reason=reason):
                return pb.AskReply(buried=pb.Refusal(reason=reason), epoch=epoch)
            case Ended(lineage=lineage):
                return pb.AskReply(ended=messages.lineage_to(lineage), epoch=epoch)
            case Stopping() | LookAgain():
                await context.abort(grpc.StatusCode.UNAVAILABLE, _text(answer))
                raise AssertionError("abort raises")
        return self._granted(answer)

    async def Watch(self, pulses: AsyncIterator[pb.Pulse], context: _Context) -> None:  # noqa: N802
        """Notices while the stream is open. It closes with its reader's death, or after the last word to it."""
        first = await anext(pulses, None)
        if first is None:
            return
        gateway, who = self._gateway, Participant(first.group, first.incarnation)
        if isinstance(gateway.denial(who), Buried | Refused):
            await context.write(messages.notice_to(gateway.notice(who)))
            return
        gateway.open_stream(who)
        gateway.pulse(who, messages.pulse_from(first))
        hearing = asyncio.create_task(self._hear(who, pulses))
        try:
            told = None
            while not gateway.stopping and (told is None or (told.buried is None and told.ended is None)):
                news, notice = gateway.news(), gateway.notice(who)
                if notice != told:
                    await context.write(messages.notice_to(notice))
                    told = notice
                    continue  # the write took time
                await news.wait()
        finally:
            hearing.cancel()
            gateway.close_stream(who)

    async def _hear(self, who: Participant, pulses: AsyncIterator[pb.Pulse]) -> None:
        """Take in the pulses of one stream; a stream that breaks is its other half's business."""
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for message in pulses:
                self._gateway.pulse(who, messages.pulse_from(message))

    async def Report(self, request: pb.ReportRequest, context: _Context) -> pb.Reply:  # noqa: N802
        who = Participant(request.group, request.incarnation)
        self._gateway.report(
            who,
            phase=request.phase if request.HasField("phase") else None,
            attempt=request.attempt if request.HasField("attempt") else None,
            step=request.step if request.HasField("step") else None,
            tokens=request.tokens if request.HasField("tokens") else None,
        )
        if not request.HasField("ended"):
            return self._reply(None)
        return self._reply(self._gateway.end(who, messages.lineage_from(request.ended)))

    async def Leave(self, request: pb.LeaveRequest, context: _Context) -> pb.Reply:  # noqa: N802
        try:
            cause = DepartureCause(request.cause)
        except ValueError:
            return self._reply(Refused(f"unknown cause {request.cause!r}; known: {', '.join(DepartureCause)}"))
        incarnation = request.incarnation if request.HasField("incarnation") else None
        self._gateway.leave(request.group, incarnation, life=request.life, cause=cause, reason=request.reason)
        return self._reply(None)

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusReply:  # noqa: N802
        return pb.StatusReply(json=json.dumps(status(self._gateway)))

    async def Kill(self, request: pb.KillRequest, context: _Context) -> pb.Reply:  # noqa: N802
        return self._reply(self._gateway.kill(request.group, request.reason))

    async def Config(self, request: pb.ConfigRequest, context: _Context) -> pb.ConfigReply:  # noqa: N802
        return pb.ConfigReply(config=self._gateway.config)

    def _reply(self, denial: Denial | None) -> pb.Reply:
        refused = None if denial is None else pb.Refusal(reason=_text(denial))
        return pb.Reply(refused=refused, epoch=self._gateway.state.epoch)


class TorchftService(torchft_pb2_grpc.LighthouseServiceServicer):
    """torchft's LighthouseService, as its ManagerServer calls it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._seated = Once(_seated_to)

    async def Quorum(  # noqa: N802
        self, request: torchft_pb2.LighthouseQuorumRequest, context: _Context
    ) -> torchft_pb2.LighthouseQuorumResponse:
        replica_id = request.requester.replica_id
        who = who_speaks(replica_id)
        answer = await self._gateway.seat(who, request.requester)
        if isinstance(answer, torchft_pb2.Quorum):
            return self._seated(answer_for(replica_id, answer))
        code = grpc.StatusCode.UNAVAILABLE if isinstance(answer, Stopping) else grpc.StatusCode.FAILED_PRECONDITION
        await context.abort(code, _text(answer))
        raise AssertionError("abort raises")

    async def Heartbeat(  # noqa: N802
        self,
        request: torchft_pb2.LighthouseHeartbeatRequest,
        context: _Context,
    ) -> torchft_pb2.LighthouseHeartbeatResponse:
        self._gateway.heard(who_speaks(request.replica_id))
        return torchft_pb2.LighthouseHeartbeatResponse()


class SecretCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped base
    """Lets nobody call phalanx.Control without the shared secret; nor torchft's service where ``everything`` is
    guarded: with TLS its callers are relays of ours, which have the secret."""

    def __init__(self, secret: str, *, everything: bool = False) -> None:
        self._secret = secret.encode()
        self._guarded = "/" if everything else "/phalanx."
        self._refuse = grpc.unary_unary_rpc_method_handler(_unauthenticated)

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        if handler_call_details.method.startswith(self._guarded):
            given = dict(handler_call_details.invocation_metadata).get(SECRET_KEY, "")
            if not hmac.compare_digest(str(given).encode(), self._secret):
                return self._refuse
        return await continuation(handler_call_details)


async def _unauthenticated(request: Any, context: _Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the shared secret (PHALANX_SECRET) is missing or wrong")


def _granted_to(grant: Grant) -> pb.AskReply:
    return pb.AskReply(grant=messages.grant_to(grant), epoch=grant.attempt >> RUNNING_BITS)


def _seated_to(quorum: torchft_pb2.Quorum) -> torchft_pb2.LighthouseQuorumResponse:
    return torchft_pb2.LighthouseQuorumResponse(quorum=quorum)


def _text(denial: Denial) -> str:
    match denial:
        case Ended(lineage=lineage):
            return f"the run ended at {lineage}"
        case Stopping():
            return STOPPING
        case LookAgain():
            return "nobody current is alive any more: look at the disk again"
    return denial.reason
