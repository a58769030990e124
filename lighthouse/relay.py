"""How does torchft's manager reach a gateway that speaks TLS? Through this door of rank 0, on loopback.

torchft's clients can neither speak TLS nor show a secret. So where TLS is on, a group's ManagerServer asks here, and
its quorum request goes on over the group's own connection to the gateway. Only this incarnation's requests pass.
Started by the trainer; without TLS managers ask the gateway themselves.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from lighthouse.client import Control
from lighthouse.protos import torchft_pb2 as pb
from lighthouse.protos import torchft_pb2_grpc as rpc

_THREADS = 4
"""A manager that tries again while its last request still waits takes another one."""


class Relay(rpc.LighthouseServiceServicer):
    """The door; ``url`` is what the manager is told."""

    def __init__(self, control: Control, *, replica_id: str) -> None:
        self._control = control
        self._replica_id = replica_id
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="relay"))
        rpc.add_LighthouseServiceServicer_to_server(self, self._server)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.stop(grace=None)

    def Quorum(  # noqa: N802
        self, request: pb.LighthouseQuorumRequest, context: Any
    ) -> pb.LighthouseQuorumResponse:
        """Pass it on and wait, for as long as the manager does."""
        if request.requester.replica_id != self._replica_id:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"only {self._replica_id} may ask here")
        passed = self._control.torchft_quorum(request)
        context.add_callback(passed.cancel)  # the manager has gone, or has its answer
        try:
            response: pb.LighthouseQuorumResponse = passed.result()
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "the manager has left")
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        return response

    def Heartbeat(  # noqa: N802
        self, request: pb.LighthouseHeartbeatRequest, context: Any
    ) -> pb.LighthouseHeartbeatResponse:
        """Says nothing that the Watch stream does not."""
        return pb.LighthouseHeartbeatResponse()
