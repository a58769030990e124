"""How do people and Prometheus look at the lighthouse? A few read-only pages over HTTP, on its event loop.

GET only, nothing is changed by it and nothing is read but the request line. Started by server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

_READ_LIMIT_S = 10.0
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class Page(NamedTuple):
    """One answer's body."""

    content_type: str
    body: bytes


async def serve_pages(pages: Mapping[str, Callable[[], Page]], *, host: str, port: int) -> asyncio.Server:
    """Serve ``pages`` by path. Raises OSError when the address cannot be bound."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A peer that goes away or talks too long gets no answer; it harms nobody else.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_READ_LIMIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, page = _answer(head, pages)
                    writer.write(_response(status, page))
                    await writer.drain()
        finally:
            writer.close()

    return await asyncio.start_server(connected, host, port)


def _answer(head: bytes, pages: Mapping[str, Callable[[], Page]]) -> tuple[int, Page]:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return 400, Page("text/plain", b"not HTTP\n")
    if words[0] != "GET":
        return 405, Page("text/plain", b"GET only\n")
    make = pages.get(words[1].split("?", 1)[0])
    return (404, Page("text/plain", b"no such page\n")) if make is None else (200, make())


def _response(status: int, page: Page) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + page.body
