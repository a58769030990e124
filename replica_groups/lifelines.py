"""How do the ranks of a group notice each other's death at once, and hear what rank 0 hears?

Every rank holds one socket to rank 0 for its whole life. The kernel closes it when the process dies, however it dies,
so an end of file is a death notice within milliseconds. Rank 0 sends what the gateway tells it down the same sockets as
JSON lines. A rank that ends by itself says ``leaving`` first, with its exit code and reason. Who
is at the other end is settled by introduction.py.

``on_broken`` runs on the watching thread: it must end the process, for the main thread may be inside a collective with
the rank that died.
"""

from __future__ import annotations

import json
import queue
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from replica_groups.introduction import introduce, introduced

Message = dict[str, Any]
OnMessage = Callable[[int, Message], None]
OnBroken = Callable[[str], None]


class Hub:
    """Rank 0's end of all lifelines."""

    def __init__(self, *, host: str, world: int, on_message: OnMessage, on_broken: OnBroken, secret: str = "") -> None:
        self._listener = socket.create_server((host, 0), backlog=world)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._world = world
        self._secret = secret
        self._on_message = on_message
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._lines: dict[int, socket.socket] = {}

    def start(self) -> None:
        """Accept every rank of the group, then watch them on a thread of its own. Blocks until all are here."""
        met: queue.SimpleQueue[tuple[int | None, socket.socket]] = queue.SimpleQueue()
        threading.Thread(target=self._accept, args=(met,), name="lifeline-door", daemon=True).start()
        while len(self._lines) < self._world - 1:
            rank, line = met.get()
            if rank is None or not 0 < rank < self._world or rank in self._lines:
                line.close()  # nobody of this group
                continue
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines[rank] = line
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        threading.Thread(target=self._watch, name="lifelines", daemon=True).start()

    def _accept(self, met: queue.SimpleQueue[tuple[int | None, socket.socket]]) -> None:
        """Meet everybody who comes, each on a thread of its own: a silent stranger must not hold up the ranks."""
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(line, met), name="lifeline-meeting", daemon=True).start()

    def _meet(self, line: socket.socket, met: queue.SimpleQueue[tuple[int | None, socket.socket]]) -> None:
        met.put((introduced(line, secret=self._secret), line))

    def broadcast(self, message: Message) -> None:
        """Send to every rank. A rank that cannot be reached is seen by the watcher, not here."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            for line in self._lines.values():
                try:
                    line.sendall(data)
                except OSError:
                    continue

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        buffers = dict.fromkeys(self._lines, b"")
        for rank, line in self._lines.items():
            selector.register(line, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select():
                rank = int(key.data)
                line = self._lines[rank]
                data = _receive(line)
                if not data:
                    selector.unregister(line)
                    self._on_broken(f"rank {rank} died")
                    continue
                *lines, buffers[rank] = (buffers[rank] + data).split(b"\n")
                for text in lines:
                    message = json.loads(text)
                    if "leaving" in message:
                        selector.unregister(line)
                    self._on_message(rank, message)


class Line:
    """Another rank's end."""

    def __init__(
        self, *, address: str, rank: int, on_message: OnMessage, on_broken: OnBroken, secret: str = ""
    ) -> None:
        """Connects, and waits until rank 0 has let it in. Raises TurnedAway with the reason, OSError."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on_message = on_message
        self._on_broken = on_broken
        introduce(self._socket, rank=rank, secret=secret)

    def start(self) -> None:
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something to rank 0; that it is gone is seen by the watcher."""
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            return

    def _watch(self) -> None:
        buffer = b""
        while data := _receive(self._socket):
            *lines, buffer = (buffer + data).split(b"\n")
            for text in lines:
                self._on_message(0, json.loads(text))
        self._on_broken("rank 0 died")


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 16)
    except OSError:
        return b""  # a reset is a death too
