"""A hostile network between a healer and a source: passes bytes on, and does one thing to what the source sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

Mangle = Callable[[int, bytes], bytes | None]
"""(bytes passed so far, data) -> what to pass on; None ends the connection."""


class Proxy:
    """Forwards healers to ``target``; ``mangle`` sees what goes from source to healer, of all connections together."""

    def __init__(self, target: str, mangle: Mangle) -> None:
        self._target = target
        self._mangle = mangle
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.passed = 0
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                healer, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            host, _, port = self._target.rpartition(":")
            source = socket.create_connection((host, int(port)))
            for pump in ((healer, source, lambda _, data: data, False), (source, healer, self._mangle, True)):
                threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _pump(self, origin: socket.socket, end: socket.socket, mangle: Mangle, count: bool) -> None:
        with contextlib.suppress(OSError):
            while data := origin.recv(4096):
                out = mangle(self.passed, data)
                if out is None:
                    break
                end.sendall(out)
                self.passed += len(data) if count else 0
        for side in (origin, end):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
