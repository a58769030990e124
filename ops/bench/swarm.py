"""Many groups that train nothing and speak the real protocols, each over connections of its own.

Towards the gateway a simulated group joins, holds its Watch stream and sends pulses, and asks for quorums as rank 0
and torchft's manager server do: ``phalanx.Control.Ask`` and ``torchft.LighthouseService.Quorum``. Towards a bare engine
it sends heartbeats at the pace of the pulses, and torchft's request alone. One event loop, no threads. Answers are
compared as bytes with those of the first group and parsed once, because the client's time must not be taken for the
lighthouse's. Used by ``ops.bench.lighthouse_command``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from configs.protocol import Claim, Pulse, RankPulse, Terms, replica_id
from configs.words import SCRATCH, Lineage
from lighthouse import messages
from lighthouse.protos import phalanx_pb2 as pb
from lighthouse.protos import phalanx_pb2_grpc, torchft_pb2, torchft_pb2_grpc

RANKS = 8
"""Ranks of a simulated group: each has a door that every grant names."""
DETECTION_S = 2.0
PULSE_S = DETECTION_S / 5
ANSWER_LIMIT_S = 60.0
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each group, as there would be
    ("grpc.max_receive_message_length", -1),
]
_QUORUM = "/torchft.LighthouseService/Quorum"
_ASK = "/phalanx.Control/Ask"


class SwarmError(Exception):
    """The lighthouse did not answer as it must; the figures would mean nothing."""


class Swarm(Protocol):
    """Simulated groups at one lighthouse."""

    async def round(self) -> list[float]:
        """One quorum of all: seconds from each group's request to its answer."""
        ...


def terms(groups: int) -> Terms:
    """The terms of a simulated run, which never ends."""
    return Terms(
        run="swarm",
        config_digest="swarm",
        groups=groups,
        min_groups=1,
        start_wait_s=60.0,
        failure_detection_s=DETECTION_S,
        steps=2**40,
    )


class EngineSwarm:
    """Groups at a bare torchft lighthouse."""

    def __init__(self, url: str, groups: int) -> None:
        self._channels = [_channel(url) for _ in range(groups)]
        self._names = [replica_id(f"g{i}", 1) for i in range(groups)]
        self._asks = [c.unary_unary(_QUORUM) for c in self._channels]  # no serializers: bytes both ways
        self._stubs = [torchft_pb2_grpc.LighthouseServiceStub(c) for c in self._channels]
        self._step = 0
        self._beating: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Every group sends heartbeats from now on, spread over their period."""
        for i, (stub, name) in enumerate(zip(self._stubs, self._names, strict=True)):
            beat = functools.partial(stub.Heartbeat, torchft_pb2.LighthouseHeartbeatRequest(replica_id=name))
            self._beating.append(asyncio.create_task(_beat(beat, first_after_s=PULSE_S * i / len(self._names))))

    async def round(self) -> list[float]:
        """As in ``Swarm``."""
        requests = [_member_bytes(name, self._step) for name in self._names]
        answers, seconds = await _timed([[(ask, request)] for ask, request in zip(self._asks, requests, strict=True)])
        _same([answer[0] for answer in answers], len(self._names))
        self._step += 1
        return seconds

    async def close(self) -> None:
        await _cancel(self._beating)
        await asyncio.gather(*(channel.close() for channel in self._channels))


class GatewaySwarm:
    """Groups at our gateway."""

    def __init__(self, url: str, groups: int) -> None:
        self._groups = [f"g{i}" for i in range(groups)]
        self._control = [_channel(url) for _ in range(groups)]
        self._manager = [_channel(url) for _ in range(groups)]  # torchft's manager server has its own
        self._stubs = [phalanx_pb2_grpc.ControlStub(c) for c in self._control]
        self._asks = [c.unary_unary(_ASK, request_serializer=pb.AskRequest.SerializeToString) for c in self._control]
        self._seats = [c.unary_unary(_QUORUM) for c in self._manager]
        self._incarnations: list[int] = []
        self._reading: list[asyncio.Task[None]] = []
        self._beating: list[asyncio.Task[None]] = []
        self._lineage, self._attempt = SCRATCH, 0
        self._asking = False

    async def join(self) -> None:
        """Every group is admitted, holds its stream, and sends pulses from then on."""
        wanted = messages.terms_to(terms(len(self._groups)))
        for i, (group, stub) in enumerate(zip(self._groups, self._stubs, strict=True)):
            request = pb.JoinRequest(terms=wanted, group=group, life=group, ranks=range(1, RANKS + 1), host="swarm")
            reply = await stub.Join(request)
            if not reply.HasField("seated"):
                raise SwarmError(f"{group} was refused: {reply.refused.reason}")
            self._incarnations.append(reply.seated.incarnation)
            stream = stub.Watch()
            await stream.write(self._pulse(i))
            await stream.read()  # the first notice: the stream is there
            self._reading.append(asyncio.create_task(_read(stream)))
            self._beating.append(asyncio.create_task(_beat(functools.partial(self._send, i, stream), first_after_s=0)))

    async def round(self) -> list[float]:
        """As in ``Swarm``; a group is answered once both of its requests are."""
        calls = []
        for i, group in enumerate(self._groups):
            claim = Claim(
                group=group,
                incarnation=self._incarnations[i],
                lineage=self._lineage,
                void=self._lineage == SCRATCH,
                transfer=tuple(f"127.0.0.1:{20000 + RANKS * i + rank}" for rank in range(RANKS)),
            )
            member = _member_bytes(replica_id(group, self._incarnations[i]), self._lineage.step)
            calls.append([(self._asks[i], messages.claim_to(claim)), (self._seats[i], member)])
        self._asking = True
        answers, seconds = await _timed(calls)
        self._asking = False
        if any(task.done() for task in (*self._reading, *self._beating)):
            raise SwarmError("a Watch stream ended")
        reply = pb.AskReply.FromString(answers[0][0])
        if not reply.HasField("grant") or any(answer[0] != answers[0][0] for answer in answers):
            raise SwarmError(f"the groups were not granted the same: {reply.WhichOneof('answer')}")
        quorum_id = _same([answer[1] for answer in answers], len(self._groups))
        if quorum_id != reply.grant.quorum_id:
            raise SwarmError(f"torchft's quorum {quorum_id} is not the granted one, {reply.grant.quorum_id}")
        self._attempt = reply.grant.attempt
        self._lineage = Lineage(reply.grant.current.step + 1, quorum_id)
        return seconds

    async def close(self) -> None:
        await _cancel([*self._reading, *self._beating])
        await asyncio.gather(*(channel.close() for channel in (*self._control, *self._manager)))

    async def _send(self, i: int, stream: Any) -> None:
        await stream.write(self._pulse(i))

    def _pulse(self, i: int) -> pb.Pulse:
        phase = "quorum" if self._asking else "compute"
        ranks = (RankPulse(attempt=self._attempt, phase=phase, age_s=0.1),) * RANKS
        pulse = Pulse(ranks=ranks, usual_s=1.0, step=self._lineage.step, tokens=self._lineage.step)
        return messages.pulse_to(self._groups[i], self._incarnations[i], pulse)


@contextlib.asynccontextmanager
async def engine_swarm(url: str, groups: int) -> AsyncIterator[EngineSwarm]:
    """Groups that beat at a bare engine while inside."""
    swarm = EngineSwarm(url, groups)
    try:
        await swarm.join()
        yield swarm
    finally:
        await swarm.close()


@contextlib.asynccontextmanager
async def gateway_swarm(url: str, groups: int) -> AsyncIterator[GatewaySwarm]:
    """Groups that have joined and beat at a gateway while inside. Raises SwarmError."""
    swarm = GatewaySwarm(url, groups)
    try:
        await swarm.join()
        yield swarm
    finally:
        await swarm.close()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _channel(url: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(url.removeprefix("http://"), options=_OPTIONS)


def _member_bytes(name: str, step: int) -> bytes:
    member = torchft_pb2.QuorumMember(
        replica_id=name,
        address="http://127.0.0.1:20000",
        store_address="127.0.0.1:20001",
        step=step,
        world_size=RANKS,
    )
    return bytes(torchft_pb2.LighthouseQuorumRequest(requester=member).SerializeToString())


async def _timed(calls: Sequence[Sequence[tuple[Any, Any]]]) -> tuple[list[list[Any]], list[float]]:
    """Make the calls of every group at once: (answers, seconds until all of a group's calls were answered)."""

    async def one(mine: Sequence[tuple[Any, Any]]) -> tuple[list[Any], float]:
        begin = time.perf_counter()
        answers = await asyncio.gather(*(call(request, timeout=ANSWER_LIMIT_S) for call, request in mine))
        return answers, time.perf_counter() - begin

    done = await asyncio.gather(*(one(mine) for mine in calls))
    return [answers for answers, _ in done], [seconds for _, seconds in done]


def _same(answers: Sequence[bytes], groups: int) -> int:
    """The quorum id, if everybody was given the same quorum of all groups."""
    first = torchft_pb2.LighthouseQuorumResponse.FromString(answers[0]).quorum
    if len(first.participants) != groups or any(answer != answers[0] for answer in answers):
        raise SwarmError(f"a quorum of {len(first.participants)} instead of {groups} groups, or not the same for all")
    return int(first.quorum_id)


async def _read(stream: Any) -> None:
    """Take in notices until the stream ends."""
    while await stream.read() is not grpc.aio.EOF:
        pass


async def _beat(beat: Callable[[], Awaitable[object]], *, first_after_s: float) -> None:
    """One group's signs of life, until cancelled."""
    await asyncio.sleep(first_after_s)
    while True:
        await beat()
        await asyncio.sleep(PULSE_S)
