"""How do people and Prometheus look at the lighthouse? A few read-only pages over HTTP, on its event loop.

GET only, nothing is changed by it and nothing is read but the request line. A page is one answer and the connection
closes; a stream is handed the connection. Browsers are told to take everything from here alone. Started by server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

Stream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_READ_LIMIT_S = 10.0
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_GUARDS = (
    "Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
    "Connection: close",
)


class Page(NamedTuple):
    """One answer's body."""

    content_type: str
    body: bytes


def text_page(text: str) -> Page:
    return Page("text/plain", text.encode())


async def serve_pages(
    pages: Mapping[str, Callable[[], Page]],
    *,
    host: str,
    port: int,
    streams: Mapping[str, Stream] | None = None,
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Serve ``pages`` and ``streams`` by path. Raises OSError when the address cannot be bound."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A peer that goes away or talks too long gets no answer; it harms nobody else.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_READ_LIMIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    refused, path = _asked(head)
                    stream = (streams or {}).get(path)
                    if stream is None or refused is not None:
                        writer.write(refused or _answer(path, pages))
                        await writer.drain()
                        return
                await stream(reader, writer)
        finally:
            writer.close()

    return await asyncio.start_server(connected, host, port, ssl=tls)


def response(status: int, page: Page, *headers: str) -> bytes:
    """A whole answer."""
    length = f"Content-Length: {len(page.body)}"
    return _head(status, f"Content-Type: {page.content_type}", length, *headers) + page.body


def stream_head(content_type: str) -> bytes:
    """The beginning of an answer that goes on for as long as the connection lives."""
    return _head(200, f"Content-Type: {content_type}")


def _asked(head: bytes) -> tuple[bytes | None, str]:
    """(the refusal of a request that is none of ours, its path)."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return response(400, text_page("not HTTP\n")), ""
    if words[0] != "GET":
        return response(405, text_page("GET only\n")), ""
    return None, words[1].split("?", 1)[0]


def _answer(path: str, pages: Mapping[str, Callable[[], Page]]) -> bytes:
    make = pages.get(path)
    return response(404, text_page("no such page\n")) if make is None else response(200, make())


def _head(status: int, *headers: str) -> bytes:
    return ("\r\n".join([f"HTTP/1.1 {status} {_PHRASES[status]}", *headers, *_GUARDS]) + "\r\n\r\n").encode()
