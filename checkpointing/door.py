"""Who may be connected to a rank's state at once? Strangers and guests, each with places of their own.

Whoever connects is a stranger until it has asked for a state as one who knows the secret, for which it has so long and
no longer. When strangers crowd the door the one that has stood there longest is cut off, so those that stand and say
nothing, or spell a request byte by byte, keep nobody out. Guests are never cut off here. Thread-safe.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

_PART = 1 << 20


class Door:
    """Counts both."""

    def __init__(self, *, strangers: int, guests: int) -> None:
        self._most_strangers, self._most_guests = strangers, guests
        self._lock = threading.Lock()
        self._strangers: list[socket.socket] = []
        """Who came first stands first."""
        self._guests: set[socket.socket] = set()

    def knock(self, connection: socket.socket) -> None:
        """One more stranger. Its thread must ``leave`` in the end; one that is cut off reads the end of its stream."""
        with self._lock:
            self._strangers.append(connection)
            if len(self._strangers) > self._most_strangers:
                with contextlib.suppress(OSError):  # it has left already
                    # Not SSLSocket's own, which forgets the encryption while another thread may still be sending.
                    socket.socket.shutdown(self._strangers.pop(0), socket.SHUT_RDWR)

    def admit(self, connection: socket.socket) -> bool:
        """The stranger has shown who it is: whether there is a place for it as a guest."""
        with self._lock:
            if connection not in self._strangers or len(self._guests) >= self._most_guests:
                return False
            self._strangers.remove(connection)
            self._guests.add(connection)
            return True

    def leave(self, connection: socket.socket) -> None:
        """It is gone, whatever it was."""
        with self._lock:
            self._guests.discard(connection)
            if connection in self._strangers:
                self._strangers.remove(connection)


def reader(connection: socket.socket, *, deadline: float | None = None) -> Callable[[int], bytes]:
    """``read(n)`` of exactly n bytes. Raises ConnectionError when the healer has left, TimeoutError at the deadline (a
    reading of the monotonic clock) however many bytes still come; without one each wait has the connection's limit."""

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if deadline is not None:
                connection.settimeout(_left(deadline))
            part = connection.recv(min(size - len(data), _PART))
            if not part:
                raise ConnectionError("the healer left")
            data += part
        return bytes(data)

    return read


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it did not show who it is in time")
    return left
