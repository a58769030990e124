"""How does a healer speak to one source? A connection whose every wait ends when the attempt does, or when the source
is silent too long. Used by fetch.py, one per thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from checkpointing.errors import TransferStopped
from checkpointing.wire import (
    MANIFEST_FRAME,
    NONCE_BYTES,
    SMALL_FRAME,
    Manifest,
    Request,
    check_signature,
    pack_json,
    read_json,
    sign,
)

_POLL_S = 0.05


class Refused(Exception):
    """The source answered that it has nothing for us."""


class Broken(Exception):
    """The source sent something wrong, or ended early: worth one more try."""


class Line:
    """A connection to ``source`` (``host:port``). ``stop`` is asked many times a second; ``stall_s`` is how long the
    source may be silent. Every method raises TransferStopped when ``stop()`` turned true, OSError for the network."""

    def __init__(
        self,
        source: str,
        *,
        secret: bytes | None,
        stop: Callable[[], bool],
        stall_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.source = source
        self._secret = secret
        self._stop = stop
        self._stall_s = stall_s
        self._check()
        host, _, port = source.rpartition(":")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._connect((host, int(port)))
            if tls is not None:
                self._socket.settimeout(stall_s)
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(_POLL_S)

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def request(self, request: Request) -> Manifest:
        """Ask for a state and wait until its window is open. Raises Refused, Broken, ValueError."""
        greeting = read_json(self._read, SMALL_FRAME)
        nonce = secrets.token_hex(NONCE_BYTES)
        body = {**request.to_json(), "nonce": nonce}
        self.send(sign(body, secret=self._secret, nonce=str(greeting.get("nonce"))))
        while True:
            answer = read_json(self._read, MANIFEST_FRAME)
            if answer.get("status") == "wait":
                continue
            if answer.get("status") != "open":
                raise Refused(str(answer.get("reason", "refused")))
            check_signature(answer, secret=self._secret, nonce=nonce)
            return Manifest.from_json(answer["manifest"])

    def send(self, body: Mapping[str, Any]) -> None:
        """Send one control frame."""
        self._socket.settimeout(self._stall_s)
        self._socket.sendall(pack_json(body))
        self._socket.settimeout(_POLL_S)

    def fill(self, view: memoryview) -> None:
        """Receive exactly as many bytes as ``view`` holds. Raises Broken when the source ends before."""
        heard = time.monotonic()
        while len(view):
            self._check()
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                if time.monotonic() - heard > self._stall_s:
                    raise OSError(f"silent for {self._stall_s} s") from None
                continue
            if not count:
                raise Broken("the source ended the transfer")
            view = view[count:]
            heard = time.monotonic()

    def _connect(self, address: tuple[str, int]) -> None:
        self._socket.setblocking(False)
        code = self._socket.connect_ex(address)
        deadline = time.monotonic() + self._stall_s
        while code == errno.EINPROGRESS:
            self._check()
            if time.monotonic() > deadline:
                raise OSError(f"no connection within {self._stall_s} s")
            if select.select([], [self._socket], [], _POLL_S)[1]:
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def _check(self) -> None:
        if self._stop():
            raise TransferStopped(f"the attempt is over; {self.source} is left")
