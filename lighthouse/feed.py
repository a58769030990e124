"""How does the live page hear what happens? Server-sent events: the whole first, then the news, a few times a second.

The news is made once for all who look. Nothing here waits for a reader: what is written goes into a buffer of bounded
size, and whoever does not empty it in time is dropped (an EventSource comes back by itself, and starts from the whole).
While nobody looks nothing runs. Served by http.py, on the gateway's event loop.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from lighthouse.http import response, stream_head, text_page

CLIENTS = 32
"""The most that may look at a time; one more gets 503."""
BUFFER = 1 << 20
"""The most that is kept for a reader beside the whole it began with, in bytes."""
BEAT_S = 5.0
"""After so long without news a sign that the lighthouse is there."""
RETRY_MS = 1000
_BEAT = b": still here\nevent: beat\ndata: {}\n\n"
_LAST_WORDS_S = 0.5
_KERNEL_BUFFER = 1 << 17
_DEAD_AFTER_MS = 30_000


class Source(Protocol):
    """What is fed. ``news`` is None while nothing has changed since its last call."""

    @property
    def id(self) -> str: ...

    def whole(self) -> dict[str, Any]: ...

    def news(self) -> dict[str, Any] | None: ...

    def pause_s(self) -> float: ...


class Feed:
    """All who look. Use on one event loop."""

    def __init__(self, source: Source, *, ready: Callable[[], Awaitable[object]]) -> None:
        """``ready`` returns once the source knows the past."""
        self._source = source
        self._ready = ready
        self._room: dict[asyncio.WriteTransport, int] = {}
        """What each reader may leave unread, bytes."""
        self._telling: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    @property
    def readers(self) -> int:
        return len(self._room)

    @property
    def buffered(self) -> int:
        """What all of them have not read yet and the kernel does not hold, bytes."""
        return sum(transport.get_write_buffer_size() for transport in self._room)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One reader, until it is gone or dropped."""
        transport = writer.transport
        if len(self._room) >= CLIENTS:
            writer.write(response(503, text_page(f"{CLIENTS} look already\n"), "Retry-After: 5"))
            await writer.drain()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._room[transport] = 0  # its place, while it waits
        try:
            _tune(transport.get_extra_info("socket"))
            await self._ready()
            if self._telling is None:
                self._source.news()  # what nobody was there to hear is in the whole
            first = _message("whole", self._source.whole(), self._source.id)
            self._room[transport] = BUFFER + len(first)
            transport.write(stream_head("text/event-stream") + b"retry: %d\n\n" % RETRY_MS + first)
            if self._telling is None:
                self._telling = asyncio.create_task(self._tell())
                self._telling.add_done_callback(self._told)
            await reader.read(1)  # returns when it goes, or says something, which no reader of events does
        finally:
            self._room.pop(transport, None)
            self._serving.discard(task)

    async def close(self) -> None:
        """Say the last news, which may be the run's end, and let everybody go."""
        if self._telling is not None:
            self._telling.cancel()
            if (news := self._source.news()) is not None:
                self._push(_message("news", news, self._source.id))
        for transport in tuple(self._room):
            transport.close()  # once what is written is sent
        if self._serving:
            await asyncio.wait(self._serving, timeout=_LAST_WORDS_S)
        self._drop_all()

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        said = loop.time()
        while self._room:
            await asyncio.sleep(self._source.pause_s())
            news = self._source.news()
            if news is None and loop.time() - said < BEAT_S:
                continue
            said = loop.time()
            self._push(_BEAT if news is None else _message("news", news, self._source.id))

    def _push(self, message: bytes) -> None:
        for transport, room in tuple(self._room.items()):
            if room == 0:
                continue  # it has not had the whole yet
            if transport.get_write_buffer_size() > room:
                transport.abort()
                del self._room[transport]
            elif not transport.is_closing():
                transport.write(message)

    def _told(self, task: asyncio.Task[None]) -> None:
        """The telling has ended: nobody looks, or it has failed, and those who look shall come again."""
        self._telling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            report = {"message": "the live page's feed has failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
            self._drop_all()

    def _drop_all(self) -> None:
        for transport in tuple(self._room):
            transport.abort()


def _message(name: str, document: dict[str, Any], identity: str) -> bytes:
    data = json.dumps(document, separators=(",", ":"), default=str)  # JSON has no line ends of its own
    return f"id: {identity}\nevent: {name}\ndata: {data}\n\n".encode()


def _tune(sock: socket.socket) -> None:
    """A reader that stands still, or whose host is gone, shall show soon."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
