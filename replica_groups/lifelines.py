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
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from configs.tls import Tls
from replica_groups.introduction import introduce, introduced

Message = dict[str, Any]
OnMessage = Callable[[int, Message], None]
OnBroken = Callable[[str], None]
_SEND_LIMIT_S = 10.0
_HANDSHAKE_S = 5.0
_NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Hub:
    """Rank 0's end of all lifelines."""

    def __init__(
        self,
        *,
        host: str,
        world: int,
        on_message: OnMessage,
        on_broken: OnBroken,
        secret: str = "",
        tls: Tls | None = None,
    ) -> None:
        self._listener = socket.create_server((host, 0), backlog=world)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._world = world
        self._secret = secret
        self._on_message = on_message
        self._on_broken = on_broken
        self._tls = None if tls is None else tls.server()
        self._lines: dict[int, _Tie] = {}

    def start(self) -> None:
        """Accept every rank of the group, then watch them on a thread of its own. Blocks until all are here."""
        met: queue.SimpleQueue[tuple[int | None, socket.socket]] = queue.SimpleQueue()
        threading.Thread(target=self._accept, args=(met,), name="lifeline-door", daemon=True).start()
        while len(self._lines) < self._world - 1:
            rank, line = met.get()
            if rank is None or not 0 < rank < self._world or rank in self._lines:
                line.close()  # nobody of this group
                continue
            self._lines[rank] = _Tie(line)
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
        rank: int | None = None
        try:
            if self._tls is not None:
                line.settimeout(_HANDSHAKE_S)
                line = self._tls.wrap_socket(line, server_side=True)
            rank = introduced(line, secret=self._secret)
        except OSError:  # no certificate, or no TLS
            pass
        met.put((rank, line))

    def broadcast(self, message: Message) -> None:
        """Send to every rank. A rank that cannot be reached is seen by the watcher, not here."""
        for line in tuple(self._lines.values()):
            line.send(message)

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for rank, line in self._lines.items():
            selector.register(line.socket, selectors.EVENT_READ, rank)
        ready = list(self._lines)  # what came with an introduction may be decrypted already
        while selector.get_map():
            for rank in ready:
                line = self._lines[rank]
                messages, alive = line.receive()
                left = any("leaving" in message for message in messages)
                if left or not alive:
                    selector.unregister(line.socket)
                for message in messages:
                    self._on_message(rank, message)
                if not left and not alive:
                    self._on_broken(f"rank {rank} died")
            ready = [int(key.data) for key, _ in selector.select()] if selector.get_map() else []


class Line:
    """Another rank's end."""

    def __init__(
        self,
        *,
        address: str,
        rank: int,
        on_message: OnMessage,
        on_broken: OnBroken,
        secret: str = "",
        tls: Tls | None = None,
    ) -> None:
        """Connects, and waits until rank 0 has let it in. Raises TurnedAway with the reason, OSError."""
        host, _, port = address.rpartition(":")
        line = socket.create_connection((host, int(port)))
        if tls is not None:
            line = tls.client().wrap_socket(line, server_hostname=host)
        introduce(line, rank=rank, secret=secret)
        self._tie = _Tie(line)
        self._on_message = on_message
        self._on_broken = on_broken

    def start(self) -> None:
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something to rank 0; that it is gone is seen by the watcher."""
        self._tie.send(message)

    def _watch(self) -> None:
        while True:
            messages, alive = self._tie.receive()
            for message in messages:
                self._on_message(0, message)
            if not alive:
                self._on_broken("rank 0 died")
                return
            _wait(self._tie.socket, select.POLLIN)


class _Tie:
    """A connection that one thread reads and others write. TLS is not made for two threads at once, so a lock guards
    each call, and nobody waits inside it."""

    def __init__(self, line: socket.socket) -> None:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setblocking(False)
        self.socket = line
        self._using = threading.Lock()
        self._sending = threading.Lock()
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Send one message whole. An end that takes nothing for long is cut off: it would read half of it."""
        view = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        deadline = time.monotonic() + _SEND_LIMIT_S
        with self._sending:
            while view:
                try:
                    with self._using:
                        sent = self.socket.send(view)
                    view = view[sent:]
                except _NOT_NOW:
                    if time.monotonic() > deadline:
                        socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
                        return
                    _wait(self.socket, select.POLLOUT, limit_s=_SEND_LIMIT_S)
                except OSError:
                    return

    def receive(self) -> tuple[list[Message], bool]:
        """(the messages that are here, whether more may come). Does not wait."""
        alive = True
        while alive:
            try:
                with self._using:
                    data = self.socket.recv(1 << 16)
            except _NOT_NOW:
                break
            except OSError:
                data = b""  # a reset is a death too
            alive = bool(data)
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(text) for text in lines], alive


def _wait(line: socket.socket, event: int, *, limit_s: float | None = None) -> None:
    poll = select.poll()
    poll.register(line, event)
    poll.poll(None if limit_s is None else 1e3 * limit_s)
