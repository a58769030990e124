"""A network that can be made bad: TCP passed on to one address, until it is told to cut, drop, delay or throttle it.

``cut`` closes what is open and refuses what comes; ``drop`` takes bytes and passes none on, as a path that swallows
packets does (they are not lost: TCP would send them again); ``delay`` holds every piece back; ``rate`` is in bytes per
second, each way and connection. Threads only; loopback. Used by a launch under a scenario, between groups and their
lighthouse.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PIECE = 16 << 10
LINGER = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""struct linger {1, 0}: close with a reset, at once."""


class FaultProxy:
    """Listens on ``address`` and passes on to ``target`` (HOST:PORT)."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._cut = self._dropping = False
        self._delay_s = 0.0
        self._rate: float | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, name="fault-proxy", daemon=True).start()

    def apply(self, fault: str, amount: float = 0.0) -> None:
        """Make the network bad in one more way. Raises ValueError for a fault that it does not know."""
        with self._changed:
            match fault:
                case "cut":
                    self._cut = True
                    for side in self._open:
                        _reset(side)
                    self._open.clear()
                case "drop":
                    self._dropping = True
                case "delay":
                    self._delay_s = amount
                case "rate":
                    self._rate = amount
                case _:
                    raise ValueError(f"the network cannot {fault}")

    def mend(self, fault: str) -> None:
        """Take one fault back; bytes that were held go on."""
        with self._changed:
            match fault:
                case "cut":
                    self._cut = False
                case "drop":
                    self._dropping = False
                case "delay":
                    self._delay_s = 0.0
                case "rate":
                    self._rate = None
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening and close what is open."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.apply("cut")
        self.mend("drop")

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            with self._changed:
                refused = self._cut
            if refused:
                _reset(near)
                continue
            try:
                far = socket.create_connection(self._target, timeout=5.0)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            with self._changed:
                self._open |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, origin: socket.socket, end: socket.socket) -> None:
        """Body of one direction's thread."""
        with contextlib.suppress(OSError):
            while data := origin.recv(PIECE):
                self._hold(len(data))
                end.sendall(data)
        with self._changed:
            self._open -= {origin, end}
        for side in (origin, end):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _hold(self, size: int) -> None:
        """Do to a piece what the network does."""
        with self._changed:
            pause = self._delay_s + (size / self._rate if self._rate else 0.0)
        if pause:
            time.sleep(pause)
        with self._changed:
            self._changed.wait_for(lambda: not self._dropping)


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        side.shutdown(socket.SHUT_RDWR)
    side.close()
