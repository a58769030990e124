"""How is a lighthouse started? Everything of one coordinator bound to its addresses, in one object.

Loopback and free ports by default; off loopback a shared secret is required; an address that is taken is an error that
names it, never shared with another process. Used by __main__.py, and in-process by tests and benchmarks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path

import grpc
import grpc.aio
from prometheus_client import CONTENT_TYPE_LATEST

from configs.secret import OFF_LOOPBACK, is_loopback
from configs.tls import Tls
from configs.words import Exit, ExitRequest, Lineage
from lighthouse import page
from lighthouse.chronicle import Chronicle, read_tail
from lighthouse.engine import load_torchft
from lighthouse.feed import Feed
from lighthouse.gateway import Gateway
from lighthouse.http import Page, serve_pages
from lighthouse.live import Live
from lighthouse.protos import phalanx_pb2_grpc, torchft_pb2_grpc
from lighthouse.service import ControlService, SecretCheck, TorchftService
from lighthouse.state import Journal, StateError
from lighthouse.status import status

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second lighthouse on the same port must fail, not share it
    ("grpc.max_receive_message_length", 4 << 20),  # whoever reaches the port may send; a group sends far less
]
_LAST_WORDS_S = 1.0
_NEWEST = 100
"""Confirmed lineages that a start looks for in the event log, from its end: one would do in a log in order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a lighthouse is started with. Addresses are ``HOST:PORT``, port 0 is a free one."""

    bind: str = "127.0.0.1:0"
    http: str | None = "127.0.0.1:0"
    min_groups: int = 1
    state: Path | None = None
    events: Path | None = None
    secret: str = ""
    tls: Tls | None = None

    @property
    def scheme(self) -> str:
        """Of both URLs."""
        return "http" if self.tls is None else "https"


class Lighthouse:
    """A running coordinator: ``start``, then ``serve`` until cancelled, then ``stop``."""

    def __init__(self, settings: Settings) -> None:
        """Reads the state file. Raises ExitRequest (2) for what cannot be used."""
        _check(settings)
        self._settings = settings
        try:
            self._journal = Journal(settings.state)
        except StateError as error:
            raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
        except OSError as error:
            raise _unusable("--state", settings.state, error) from error
        try:
            self._chronicle = Chronicle(settings.events)
        except OSError as error:
            self._journal.close()
            raise _unusable("--events", settings.events, error) from error
        self._server: grpc.aio.Server | None = None
        self._pages: asyncio.Server | None = None
        self._feed: Feed | None = None
        self.gateway: Gateway
        self.url = ""
        self.http_url: str | None = None

    async def start(self) -> None:
        """Bind and answer. Raises ExitRequest (2) when an address is taken."""
        settings = self._settings
        self.gateway = Gateway(
            journal=self._journal,
            sink=self._chronicle,
            torchft=load_torchft(),
            min_groups=settings.min_groups,
            announced=_announced(settings.events),
        )
        self._chronicle.start(self.gateway)
        tls = settings.tls is not None
        checks = [SecretCheck(settings.secret, everything=tls)] if settings.secret else []
        self._server = grpc.aio.server(interceptors=checks, options=_OPTIONS)
        phalanx_pb2_grpc.add_ControlServicer_to_server(ControlService(self.gateway), self._server)
        torchft_pb2_grpc.add_LighthouseServiceServicer_to_server(TorchftService(self.gateway), self._server)
        host = settings.bind.rpartition(":")[0]
        self.url = f"{settings.scheme}://{host}:{_bind(self._server, settings.bind, settings.tls)}"
        if settings.http is not None:
            await self._start_pages(settings.http)
        await self._server.start()

    async def serve(self) -> None:
        """Work until cancelled. An error in the deciding ends it: groups must not wait for one that cannot decide."""
        await self.gateway.run()

    async def stop(self) -> None:
        """Close everything. Nobody is buried by it: the groups come back to the next lighthouse."""
        if self._server is not None:
            await self.gateway.stop()
            await self._server.stop(grace=_LAST_WORDS_S)
        if self._pages is not None:
            self._pages.close()
        if self._feed is not None:
            await self._feed.close()
        self._journal.close()
        self._chronicle.close()

    async def _start_pages(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        pages = {"/metrics": self._metrics, "/status.json": self._status, "/healthz": self._health}
        self._feed = Feed(Live(lambda: status(self.gateway), self._chronicle), ready=self._chronicle.ready)
        try:
            self._pages = await serve_pages(
                {**page.pages(), **pages},
                streams={"/events": self._feed.serve},
                host=host.strip("[]"),
                port=int(port),
                tls=None if self._settings.tls is None else self._settings.tls.server(),
            )
        except OSError as error:
            raise ExitRequest(Exit.BAD_CONFIG, f"cannot listen on {address} (--http): {error.strerror}") from error
        self.http_url = f"{self._settings.scheme}://{host}:{self._pages.sockets[0].getsockname()[1]}"

    def _metrics(self) -> Page:
        gateway = self.gateway
        return Page(CONTENT_TYPE_LATEST, gateway.metrics.render(epoch=gateway.state.epoch, ages=gateway.ages()))

    def _status(self) -> Page:
        return Page("application/json", json.dumps(status(self.gateway)).encode())

    def _health(self) -> Page:
        return Page("text/plain", b"ok\n")


def _check(settings: Settings) -> None:
    if settings.min_groups < 1:
        raise ExitRequest(Exit.BAD_CONFIG, f"--min-groups {settings.min_groups}: expected a number >= 1")
    for flag, address in (("--bind", settings.bind), ("--http", settings.http)):
        if address is None:
            continue
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ExitRequest(Exit.BAD_CONFIG, f"{flag} {address}: expected HOST:PORT")
        if not _loopback(host.strip("[]")) and not settings.secret:
            raise ExitRequest(Exit.BAD_CONFIG, f"{flag} {address} {OFF_LOOPBACK}")


def _loopback(host: str) -> bool:
    try:
        return is_loopback(host)
    except OSError as error:
        raise ExitRequest(Exit.BAD_CONFIG, f"host {host!r} cannot be resolved: {error.strerror}") from error


def _bind(server: grpc.aio.Server, address: str, tls: Tls | None) -> int:
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        trusted = tls.ca.read_bytes() if tls.mutual else None
        own = grpc.ssl_server_credentials([pair], root_certificates=trusted, require_client_auth=tls.mutual)
        return int(server.add_secure_port(address, own))
    except RuntimeError as error:
        text = f"cannot listen on {address} (--bind): the port is in use or the address is not this machine's"
        raise ExitRequest(Exit.BAD_CONFIG, text) from error


def _announced(events: Path | None) -> frozenset[Lineage]:
    """The newest lineages that the event log already calls confirmed: the last one is what may be missing."""
    if events is None or not events.exists():
        return frozenset()
    found: set[Lineage] = set()
    for event in read_tail(events, size=events.stat().st_size, since=0.0):
        if event["event"] == "confirmed":
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged record says nothing
                found.add(Lineage.parse(event["lineage"]))
                if len(found) == _NEWEST:
                    break
    return frozenset(found)


def _unusable(option: str, path: Path | None, error: OSError) -> ExitRequest:
    return ExitRequest(Exit.BAD_CONFIG, f"{option} {path} cannot be used: {error.strerror}")
