"""How does a healthy rank give its state away without being hurt? A server with a serving window per attempt.

While a window is open nothing writes the tensors (the source commits only after its healer has joined the reduction,
and closes the window before its vote), so bytes are sent from the tensors' own memory. ``close`` ends transfers in
progress and returns once no thread touches the tensors any more, whatever the healer does. One server per rank;
``open`` and ``close`` on the training thread.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from checkpointing.door import Door, reader
from checkpointing.memory import Buffer
from checkpointing.pace import Pace
from checkpointing.state import Clocks
from checkpointing.window import Window
from checkpointing.wire import (
    CHUNK_BYTES,
    NONCE_BYTES,
    PROTOCOL,
    SMALL_FRAME,
    Chunk,
    Manifest,
    Request,
    check_signature,
    digest_kind,
    pack_header,
    pack_json,
    read_json,
    sign,
    spoiled,
)
from configs.tls import Tls
from configs.words import Lineage

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_HANDSHAKE_S = 5.0
"""From the connection to a request that shows the secret, all together."""
_SEND_S = 60.0
"""A healer that takes no byte for so long is left; the window closes long before in practice."""
_WAIT_FRAME_S = 0.5
_MAX_STRANGERS = 64
_MAX_GUESTS = 64
_NO_ROOM_S = 0.1
"""Pause after a connection that could not be taken: the process may be out of file descriptors."""
_WANT_FRAME = 16 << 20


def nothing(_name: str, **_context: Any) -> None:
    """The failpoint and event sink of whoever injects none."""


class StateServer:
    """Serves this rank's shards to the same rank of healing groups. Thread-safe.

    ``rate_limit`` is in bytes per second, for all healers together. Off loopback a secret is required (ValueError).
    """

    def __init__(
        self,
        *,
        host: str = LOOPBACK,
        secret: bytes | None = None,
        tls: Tls | None = None,
        window_wait_s: float = 30.0,
        rate_limit: float | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        failpoint: Callable[..., Any] = nothing,
    ) -> None:
        if secret is None and not host.startswith("127."):
            raise ValueError(f"serving state on {host} needs PHALANX_SECRET; without one only loopback is served")
        self._secret = secret
        self._tls = None if tls is None else tls.server()
        self._window_wait_s = window_wait_s
        self._pace = Pace(rate_limit)
        self._chunk_bytes = chunk_bytes
        self._failpoint = failpoint
        self._changed = threading.Condition()
        self._window: Window | None = None
        self._over = -1
        """Greatest attempt whose window has been closed."""
        self._door = Door(strangers=_MAX_STRANGERS, guests=_MAX_GUESTS)
        self._stopped = False
        self._socket = socket.create_server((host, 0), backlog=_MAX_STRANGERS)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, name="state-server", daemon=True).start()

    def open(
        self,
        *,
        attempt: int,
        quorum_id: int,
        lineage: Lineage,
        tensors: Mapping[str, torch.Tensor],
        clocks: Clocks,
    ) -> None:
        """Offer this state for one attempt, in place of any other. Call on the training thread while it waits: the
        references to the shards are taken here. Nothing may write the tensors until ``close`` has returned."""
        if clocks.lineage != lineage:
            raise ValueError(f"clocks say {clocks.lineage}, the state on offer is {lineage}")
        self.close()
        request, kind = Request(attempt, quorum_id, lineage), digest_kind(self._secret)
        window = Window(request, tensors, clocks, kind=kind, chunk_bytes=self._chunk_bytes)
        with self._changed:
            self._window = window
            self._changed.notify_all()

    def close(self) -> None:
        """Close the window; transfers in progress end. On return no thread reads the tensors. Idempotent."""
        with self._changed:
            window = self._window
            if window is None:
                return
            window.closed.set()
            self._window = None
            self._over = max(self._over, window.request.attempt)
            for connection in window.sockets:
                with contextlib.suppress(OSError):  # the healer may have left already
                    # Not SSLSocket's own, which forgets the encryption while another thread may still be sending.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            self._changed.notify_all()
            self._changed.wait_for(lambda: window.users == 0)

    def stop(self) -> None:
        """Close the window and the port. The server cannot be opened again."""
        self.close()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # wakes accept
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._stopped:
                    return
                _log.info("a connection could not be taken: %s", error)
                time.sleep(_NO_ROOM_S)
                continue
            deadline = time.monotonic() + _HANDSHAKE_S
            try:
                connection.settimeout(_HANDSHAKE_S)
                if self._tls is not None:  # what a stranger can keep waiting is left to its own thread
                    connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError as error:
                connection.close()
                _log.info("a connection ended early: %s", error)
                continue
            self._door.knock(connection)
            arguments = (connection, deadline)
            threading.Thread(target=self._converse, args=arguments, name="state-source", daemon=True).start()

    def _converse(self, connection: socket.socket, deadline: float) -> None:
        """One connection, from the greeting to its end. Runs on its own thread."""
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()  # its limit counts for the whole of it
                self._answer(connection, deadline)
        except Exception as error:  # noqa: BLE001 - a thread's edge: whatever a healer does, this rank trains on
            _log.info("a transfer ended early: %s", error)
        finally:
            self._door.leave(connection)

    def _answer(self, connection: socket.socket, deadline: float) -> None:
        nonce = secrets.token_hex(NONCE_BYTES)
        connection.sendall(pack_json({"phalanx": PROTOCOL, "nonce": nonce}))
        try:
            asked = read_json(reader(connection, deadline=deadline), SMALL_FRAME)
            check_signature(asked, secret=self._secret, nonce=nonce)
            request = Request.from_json(asked)
        except ValueError as error:
            connection.sendall(pack_json({"status": "refused", "reason": str(error)}))
            return
        connection.settimeout(_HANDSHAKE_S)
        if not self._door.admit(connection):
            connection.sendall(pack_json({"status": "refused", "reason": f"{_MAX_GUESTS} are served already"}))
            return
        window, reason = self._wait_for_window(request, connection)
        if window is None:
            connection.sendall(pack_json({"status": "refused", "reason": reason}))
            return
        try:
            manifest = self._manifest(window, connection)
            if manifest is not None:
                body = {"status": "open", "manifest": manifest.to_json()}
                connection.settimeout(_SEND_S)
                connection.sendall(pack_json(sign(body, secret=self._secret, nonce=str(asked.get("nonce")))))
                self._serve(window, manifest, connection)
        finally:
            with self._changed:
                window.sockets.discard(connection)
                window.users -= 1
                self._changed.notify_all()

    def _wait_for_window(self, request: Request, connection: socket.socket) -> tuple[Window | None, str]:
        """The window of ``request``, entered, or (None, reason). A request may come before its window opens."""
        deadline = time.monotonic() + self._window_wait_s
        while True:
            with self._changed:
                window, refusal = self._match(request)
                if window is not None:
                    window.users += 1
                    window.sockets.add(connection)
                    return window, ""
                if refusal:
                    return None, refusal
                if time.monotonic() >= deadline:
                    return None, f"the window of attempt {request.attempt} did not open within {self._window_wait_s} s"
                self._changed.wait(_WAIT_FRAME_S)
                window, refusal = self._match(request)
            if window is None and not refusal:
                connection.sendall(pack_json({"status": "wait"}))

    def _match(self, request: Request) -> tuple[Window | None, str]:
        window = self._window
        if self._stopped:
            return None, "this source has stopped"
        if window is not None and window.request == request:
            return window, ""
        if window is not None and window.request.attempt == request.attempt:
            return None, f"this source holds {window.request.lineage} of quorum {window.request.quorum_id}"
        newest = self._over if window is None else max(self._over, window.request.attempt)
        if request.attempt <= newest:
            return None, f"attempt {request.attempt} is over"
        return None, ""

    def _manifest(self, window: Window, connection: socket.socket) -> Manifest | None:
        """The window's manifest, made by the first thread that asks; the others wait. None: the window closed."""
        with self._changed:
            mine, window.hashing = not window.hashing, True
        if mine:
            # A thread of its own, so that this healer hears from us however long the hashing takes.
            with self._changed:
                window.users += 1
            threading.Thread(target=self._hash, args=(window,), name="state-digests", daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: window.manifest is not None or window.closed.is_set(), _WAIT_FRAME_S)
                if window.closed.is_set():
                    return None
                if window.manifest is not None:
                    return window.manifest
            connection.sendall(pack_json({"status": "wait"}))

    def _hash(self, window: Window) -> None:
        manifest = None
        try:
            manifest = window.take_digests()
        finally:
            with self._changed:
                window.manifest = manifest
                window.users -= 1
                self._changed.notify_all()

    def _serve(self, window: Window, manifest: Manifest, connection: socket.socket) -> None:
        """Send the chunks that the healer names, until it leaves or the window closes."""
        chunks = list(manifest.chunks())
        buffer = Buffer()
        while not window.closed.is_set():
            wanted = read_json(reader(connection), _WANT_FRAME).get("chunks")
            if not isinstance(wanted, list) or not all(type(n) is int and 0 <= n < len(chunks) for n in wanted):
                return
            for number in wanted:
                with self._changed:
                    sent, window.sent = window.sent, window.sent + 1
                fault = self._failpoint("heal_send", step=window.request.lineage.step, done=sent, total=len(chunks))
                if window.closed.is_set():
                    return
                self._send_chunk(window, chunks[number], connection, buffer, fault)

    def _send_chunk(
        self, window: Window, chunk: Chunk, connection: socket.socket, buffer: Buffer, fault: str | None
    ) -> None:
        data = spoiled(window.shards[chunk.name][1].readable(chunk.start, chunk.stop, buffer), fault)
        connection.sendall(pack_header(window.request, chunk))
        connection.sendall(data)
        if fault == "truncate":
            raise ConnectionError("injected: the stream ends inside a chunk")
        pause = self._pace.pause(len(data))
        if pause > 0:
            with self._changed:
                self._changed.wait_for(window.closed.is_set, pause)
