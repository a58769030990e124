"""How does a group, or a launcher, speak to the lighthouse? Through this synchronous client of phalanx.Control.

Rule: a gateway that is gone is noticed at once (its socket closes) and raises ``Unreachable``; the caller loops until
it is back. Channels are made on the first call in each process, never carried over a fork. Thread-safe. Used by rank 0
of a group and by the supervisor; decides nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from configs.protocol import Claim, Grant, Notice, Pulse, Refused, Seated, Terms, Unreachable, Voucher
from configs.secret import read_secret
from configs.tls import Tls
from configs.words import DepartureCause, Exit, ExitRequest, Lineage
from lighthouse import messages
from lighthouse.channel import open_channel
from lighthouse.protos import phalanx_pb2 as pb
from lighthouse.protos import phalanx_pb2_grpc as rpc
from lighthouse.protos import torchft_pb2, torchft_pb2_grpc

SECRET_KEY = "phalanx-secret"
CALL_LIMIT_S = 10.0
PULSE_S = 0.4
_RECONNECT_S = 0.05


class Cancelled(Exception):
    """``cancel_ask`` was called while ``ask`` waited."""


class Control:
    """One process's way to the lighthouse at ``url`` (``http://HOST:PORT``, ``https://`` where it speaks TLS)."""

    def __init__(self, url: str, *, secret: str | None = None, tls: Tls | None = None) -> None:
        """``secret`` defaults to that of the environment. Connects on the first call. Raises ExitRequest(2)
        for a URL that does not go with ``tls``."""
        scheme, _, target = url.rpartition("://")
        if (scheme == "https") != (tls is not None):
            need = "needs security.tls_*" if tls is None else "is not https://, but security.tls_* is set"
            raise ExitRequest(Exit.BAD_CONFIG, f"the lighthouse at {url} {need}")
        self._tls = tls
        self._target = target.rstrip("/")
        secret = read_secret() if secret is None else secret
        self._metadata = ((SECRET_KEY, secret),) if secret else ()
        self._lock = threading.Lock()
        self._pid = 0
        self._channel: grpc.Channel | None = None
        self._stub: rpc.ControlStub | None = None
        self._asking: grpc.Future | None = None
        self._taken_back = False
        self._reports: set[grpc.Future] = set()
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The greatest epoch seen; a lighthouse with a smaller one is refused."""
        return self._epoch

    def join(
        self,
        terms: Terms,
        *,
        group: str,
        life: str = "",
        pid: int = 0,
        ranks: list[int] | None = None,
        config: str = "",
        manager: bool = False,
    ) -> Seated:
        """Become an incarnation of ``group``; its predecessors are buried. Joining again with the same ``life``
        gives the same answer. ``manager``: a torchft.Manager with the replica id ``group:incarnation`` will speak for
        it, and nobody asks. Raises Refused, Unreachable."""
        request = pb.JoinRequest(
            terms=messages.terms_to(terms),
            group=group,
            life=life,
            pid=pid or os.getpid(),
            ranks=ranks or [],
            host=socket.gethostname(),
            config=config,
            manager=manager,
        )
        reply = self._call("Join", request)
        if reply.HasField("refused"):
            raise Refused(reply.refused.reason)
        seated = messages.seated_from(reply.seated)
        self._see(seated.epoch)
        return seated

    def vouch(self, group: str, incarnation: int, voucher: Voucher) -> None:
        """Show what an incarnation has built, before it first asks. Vouching again is no harm.

        Raises Refused with everything that differs from the other groups, Buried, Ended, Unreachable.
        """
        reply = self._call("Vouch", messages.voucher_to(group, incarnation, voucher))
        self._see(reply.epoch)
        messages.raise_denial(reply)

    def ask(self, claim: Claim) -> Grant:
        """Ask for the next quorum and wait for it, without a limit. The group's torchft quorum request and its Watch
        stream must be there too, or the wait does not end. One at a time.

        Raises Refused, Buried, Ended, Unreachable, and Cancelled when another thread called ``cancel_ask``.
        """
        with self._lock:
            future = self._connected().Ask.future(messages.claim_to(claim), metadata=self._metadata)
            self._asking, self._taken_back = future, False
        try:
            reply = future.result()
        except grpc.FutureCancelledError:
            if self._taken_back:
                raise Cancelled(f"the request of {claim.group}:{claim.incarnation} was taken back") from None
            raise Unreachable("the lighthouse ended the call") from None
        except grpc.RpcError as error:
            raise _translated(error) from None
        finally:
            with self._lock:
                self._asking = None
        return self._granted(reply)

    def cancel_ask(self) -> None:
        """Take back the request of an ``ask`` that waits in another thread, if there is one."""
        with self._lock:
            if self._asking is not None:
                self._taken_back = True
                self._asking.cancel()

    def watch(
        self,
        group: str,
        incarnation: int,
        on_notice: Callable[[Notice], None],
        on_break: Callable[[str], None],
        *,
        pulse: Callable[[], Pulse] = Pulse,
        every_s: float = PULSE_S,
    ) -> WatchHandle:
        """Hold the Watch stream, which is this incarnation's sign of life, from a thread of its own.

        ``on_notice`` is called on that thread with every notice, the first at once after each connect; ``on_break``
        with the reason each time the stream breaks or cannot be had. It reconnects by itself until closed, or until a
        notice says buried or ended. ``pulse`` is sent at once and then every ``every_s``: the gateway buries who falls
        silent.
        """
        return WatchHandle(self, group, incarnation, on_notice, on_break, pulse=pulse, every_s=every_s)

    def report(
        self,
        group: str,
        incarnation: int,
        *,
        phase: str | None = None,
        attempt: int | None = None,
        step: int | None = None,
        tokens: int | None = None,
        ended: Lineage | None = None,
    ) -> None:
        """Say where the group stands. Returns at once, and it may be lost, except with ``ended`` (the last state is
        published, the run is over): then it waits for the answer and raises Refused or Unreachable."""
        request = pb.ReportRequest(
            group=group, incarnation=incarnation, phase=phase, attempt=attempt, step=step, tokens=tokens
        )
        if ended is None:
            with self._lock:
                future = self._connected().Report.future(request, metadata=self._metadata, timeout=CALL_LIMIT_S)
                self._reports.add(future)  # gRPC cancels a call that nobody refers to
            future.add_done_callback(self._reports.discard)
            return
        request.ended.CopyFrom(messages.lineage_to(ended))
        self._checked("Report", request)

    def leave(
        self, group: str, incarnation: int | None, *, life: str = "", cause: DepartureCause, reason: str = ""
    ) -> None:
        """Say that an incarnation is gone (named by its number or by the launcher's ``life``). Told twice is told
        once. Raises Unreachable."""
        request = pb.LeaveRequest(group=group, incarnation=incarnation, life=life, cause=cause.value, reason=reason)
        self._checked("Leave", request)

    def torchft_quorum(self, request: torchft_pb2.LighthouseQuorumRequest) -> grpc.Future:
        """Pass a manager's quorum request on; the future of its response."""
        with self._lock:
            self._connected()
            return torchft_pb2_grpc.LighthouseServiceStub(self._channel).Quorum.future(request, metadata=self._metadata)

    def status(self) -> dict[str, Any]:
        """What /status.json shows. Raises Unreachable."""
        found: dict[str, Any] = json.loads(self._call("Status", pb.StatusRequest()).json)
        return found

    def kill(self, group: str, *, reason: str = "asked to") -> None:
        """Bury the group's present incarnation. Raises Refused when there is none, Unreachable."""
        self._checked("Kill", pb.KillRequest(group=group, reason=reason))

    def config(self) -> str:
        """The run's resolved config (TOML) as its groups brought it; empty when nobody did. Raises Unreachable."""
        text: str = self._call("Config", pb.ConfigRequest()).config
        return text

    def close(self) -> None:
        """Close the channel: what waits in it ends, and a Watch stream with it. A later call connects anew."""
        with self._lock:
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            channel.close()

    def _call(self, method: str, request: Any) -> Any:
        with self._lock:
            call = getattr(self._connected(), method)
        try:
            return call(request, metadata=self._metadata, timeout=CALL_LIMIT_S)
        except grpc.RpcError as error:
            raise _translated(error) from None

    def _checked(self, method: str, request: Any) -> None:
        reply = self._call(method, request)
        self._see(reply.epoch)
        if reply.HasField("refused"):
            raise Refused(reply.refused.reason)

    def _connected(self) -> rpc.ControlStub:
        if self._stub is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._channel = open_channel(self._target, self._tls)
            self._stub = rpc.ControlStub(self._channel)
        return self._stub

    def _granted(self, reply: pb.AskReply) -> Grant:
        self._see(reply.epoch)
        messages.raise_denial(reply)
        return messages.grant_from(reply.grant)

    def _see(self, epoch: int) -> None:
        """Two lighthouses: the older one must not be obeyed by anyone who has heard the younger."""
        with self._lock:
            if epoch < self._epoch:
                raise Unreachable(f"the lighthouse at {self._target} is of epoch {epoch}, {self._epoch} was seen")
            self._epoch = epoch

    def _open_watch(self, pulses: Iterator[pb.Pulse]) -> Any:
        with self._lock:
            return self._connected().Watch(pulses, metadata=self._metadata)


class WatchHandle:
    """A Watch stream that is held open by a thread; made by ``Control.watch``."""

    def __init__(
        self,
        control: Control,
        group: str,
        incarnation: int,
        on_notice: Callable[[Notice], None],
        on_break: Callable[[str], None],
        *,
        pulse: Callable[[], Pulse],
        every_s: float,
    ) -> None:
        self._control = control
        self._name = (group, incarnation)
        self._pulse = pulse
        self._every_s = every_s
        self._on_notice = on_notice
        self._on_break = on_break
        self._closed = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{group}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream. To the lighthouse that is this incarnation's death, unless it has left or the run ended."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                over = self._follow()
                reason = "the lighthouse ended the stream"
            except grpc.RpcError as error:
                over, reason = False, _text(error)
            except Unreachable as error:
                over, reason = False, str(error)
            if over or self._closed.is_set():
                return
            self._on_break(reason)
            self._closed.wait(_RECONNECT_S)

    def _follow(self) -> bool:
        """Read one stream to its end. True when there is nothing more to hear, ever."""
        over = threading.Event()
        self._stream = stream = self._control._open_watch(self._pulses(over))
        if self._closed.is_set():  # close came before there was a stream for it to cancel
            stream.cancel()
        try:
            for message in stream:
                notice = messages.notice_from(message)
                self._control._see(notice.epoch)
                self._on_notice(notice)
                if self._closed.is_set() or notice.buried is not None or notice.ended is not None:
                    return True
        finally:
            over.set()
            stream.cancel()
        return False

    def _pulses(self, over: threading.Event) -> Iterator[pb.Pulse]:
        """What is sent while the stream is open; gRPC asks for it on a thread of its own."""
        while not over.is_set():
            yield messages.pulse_to(*self._name, self._pulse())
            over.wait(self._every_s)


def _text(error: grpc.RpcError) -> str:
    return f"{error.code().name.lower()}: {error.details()}"


def _translated(error: grpc.RpcError) -> Exception:
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Refused(error.details())
    return Unreachable(_text(error))
