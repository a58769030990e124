"""Where do the gateway's events go? Into the event log first, then into the history that the live page shows.

A lighthouse that starts reads the last hour of its log back, from the end, on a thread: groups that wait for it do not
wait for that. Events that come meanwhile are taken in after it. Made by server.py, which hands it to the gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.run_folder import Event, EventLog, parse_event
from lighthouse.gateway import Gateway
from lighthouse.history import HOUR_S, History

_BLOCK = 1 << 18
READ_BACK = 64 << 20
"""The most that is read back of a log, in bytes."""


class Chronicle:
    """An event sink with a memory. Use on one event loop."""

    def __init__(self, path: Path | None, *, wall: Callable[[], float] = time.time) -> None:
        """``path`` is the event log, if there is to be one."""
        self.history = History()
        self._gateway: Gateway | None = None
        self._log = None if path is None else EventLog(path, group=None, clock=wall)
        self._path = path
        self._past = 0 if path is None else path.stat().st_size
        self.wall = wall
        self._ready = asyncio.Event()
        self._early: list[Event] = []
        self._reading: asyncio.Task[None] | None = None

    def __call__(self, event: str, **fields: object) -> Event:
        """Log one event and remember it. A ``confirmed`` one also gets the ``tokens`` so far."""
        if event == "confirmed" and (tokens := self._tokens()):
            fields = {**fields, "tokens": tokens}
        written = self._log(event, **fields) if self._log else {"t": self.wall(), "event": event, **fields}
        if self._ready.is_set():
            self.history.take(written)
        else:
            self._early.append(written)
        return written

    def start(self, gateway: Gateway) -> None:
        """``gateway`` begins its epoch: say so, and begin to read the last hour back."""
        self._gateway = gateway
        self("lighthouse", epoch=gateway.state.epoch)
        self._reading = asyncio.create_task(self._read_back())

    async def ready(self) -> None:
        """Wait until what there was has been read."""
        await self._ready.wait()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._log is not None:
            self._log.close()

    def _tokens(self) -> int:
        """Committed so far, as the living groups last said; 0 while none has."""
        gateway = self._gateway
        return 0 if gateway is None else max((gateway.lives[who].tokens for who in gateway.living), default=0)

    async def _read_back(self) -> None:
        past = await asyncio.to_thread(_read, self._path, self._past, self.wall() - HOUR_S)
        for event in self._early:
            past.take(event)
        self._early.clear()
        self.history = past
        self._ready.set()


def _read(path: Path | None, size: int, since: float) -> History:
    """The history that the first ``size`` bytes of a log tell; a log that cannot be read tells none."""
    past = History()
    try:
        events = [] if path is None else list(read_tail(path, size=size, since=since))
    except OSError:
        return past
    for event in reversed(events):
        past.take(event)
    return past


def read_tail(path: Path, *, size: int, since: float) -> Iterator[Event]:
    """The events of a log's first ``size`` bytes from ``since`` on, **newest first**, without reading what is before.

    Departures are logged with the moment of the burial, a little late: the end of reading is an event a minute older.
    """
    with path.open("rb") as file:
        rest, at, least = b"", size, max(size - READ_BACK, 0)
        while at > least:
            begin = max(at - _BLOCK, 0)
            file.seek(begin)
            lines = (file.read(at - begin) + rest).split(b"\n")
            rest, at = lines[0], begin
            for line in reversed(lines[1:] if begin else lines):
                event = parse_event(line)
                if event is None:
                    continue
                if event["t"] < since - 60:
                    return
                if event["t"] >= since:
                    yield event
