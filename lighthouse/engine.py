"""How does torchft make the quorum? Its LighthouseServer, on loopback in this process, one for each membership.

Rule: no timer of the engine ever decides anything. A fresh server (0.3 ms) is told of exactly the decided members,
needs all of them, and has infinite limits; it is used again only while the members stay the same. Made and asked by
the gateway; whom to seat is decided in decide.py.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio

from lighthouse.protos import torchft_pb2 as pb
from lighthouse.protos import torchft_pb2_grpc as rpc
from lighthouse.state import Participant

_FOREVER_MS = 2**50
_TICK_MS = 60_000  # requests tick the engine by themselves
_ANSWER_LIMIT_S = 10.0
_QUORUM = "/torchft.LighthouseService/Quorum"


class EngineError(Exception):
    """The engine did not answer as decided; it must not be used again."""


def load_torchft() -> ModuleType:
    """torchft's compiled module alone: its package imports torch, of no use to a coordinator (10 ms instead of 3 s)."""
    package = importlib.util.find_spec("torchft")
    if package is None or not package.submodule_search_locations:
        raise ImportError("torchft is not installed")
    os.environ.setdefault("RUST_LOG", "warn")  # its information lines are several for each quorum
    for folder in package.submodule_search_locations:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"_torchft{suffix}"
            if path.exists():
                spec = importlib.util.spec_from_file_location("torchft._torchft", path)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise ImportError(f"no compiled module in {package.submodule_search_locations}")


class Engine:
    """One torchft lighthouse for one membership."""

    def __init__(self, torchft: ModuleType, *, members: tuple[Participant, ...], quorum_id: int) -> None:
        """``quorum_id`` is ours: the engine counts from 1."""
        self.members = members
        self.quorum_id = quorum_id
        self._server: Any = torchft.LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=len(members),
            join_timeout_ms=_FOREVER_MS,
            quorum_tick_ms=_TICK_MS,
            heartbeat_timeout_ms=_FOREVER_MS,
        )
        port = self._server.address().rsplit(":", 1)[1]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        self._stub = rpc.LighthouseServiceStub(self._channel)
        self._ask = self._channel.unary_unary(_QUORUM, request_serializer=pb.LighthouseQuorumRequest.SerializeToString)
        self._greeted = False

    async def quorum(self, requesters: Sequence[pb.QuorumMember]) -> pb.Quorum:
        """Put the members' requests to the engine. Raises EngineError unless it seats exactly these."""
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                if not self._greeted:
                    beats = [pb.LighthouseHeartbeatRequest(replica_id=str(member)) for member in self.members]
                    await asyncio.gather(*(self._stub.Heartbeat(beat) for beat in beats))
                    self._greeted = True
                requests = [pb.LighthouseQuorumRequest(requester=requester) for requester in requesters]
                answers = await asyncio.gather(*(self._ask(request) for request in requests))
        except (grpc.RpcError, TimeoutError) as error:
            raise EngineError(f"no answer from the engine: {error!r}") from error
        quorum = _parsed(answers, wanted=[str(member) for member in self.members])
        quorum.quorum_id = self.quorum_id
        return quorum

    async def close(self) -> None:
        await self._channel.close()
        self._server.shutdown()


def _parsed(answers: Sequence[bytes], *, wanted: list[str]) -> pb.Quorum:
    """The quorum of all answers; they are the same bytes, so that one is parsed and not the square of their number."""
    quorum: pb.Quorum | None = None
    for answer in dict.fromkeys(answers):
        quorum = pb.LighthouseQuorumResponse.FromString(answer).quorum
        seated = [member.replica_id for member in quorum.participants]
        if seated != wanted:
            raise EngineError(f"the engine seated {seated} instead of {wanted}")
    assert quorum is not None
    return quorum


def requesters(
    requests: Mapping[Participant, pb.QuorumMember],
    *,
    members: Sequence[Participant],
    holders: Sequence[str],
    step: int,
) -> list[pb.QuorumMember]:
    """The members' requests with the steps that torchft must see: it compares steps only, so whoever must heal is
    shown one step behind, whatever its lineage. At step 0 it cannot be told apart and the Grant alone says who heals.
    """
    behind, current = max(step - 1, 0), frozenset(holders)
    rewritten = []
    for member in members:
        request = pb.QuorumMember()
        request.CopyFrom(requests[member])
        request.replica_id = str(member)
        request.step = step if member.group in current else behind
        request.shrink_only = False
        request.commit_failures = 0
        rewritten.append(request)
    return rewritten
