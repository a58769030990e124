"""Who starts the lighthouse of a launch, and keeps it?

It is a process of its own, tied to the launcher's main thread. Should it die, it is started again on the same address
and the same state file, beside whatever else the launcher does: the groups loop until it is back. One that is there but
silent (stopped, or its loop hangs) is ended first, with the stacks of its threads in its log. A port that is taken, or
a bad state file, is the user's to mend: exit 2 at the first start; later it is tried again for a while, for a port
may be taken for a moment, and then the run ends with exit 3.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

from configs.run_folder import EventSink, RunFolder
from configs.tls import Tls
from configs.words import Exit, ExitRequest
from ops.launch.policy import describe_code

START_LIMIT_S = 60.0
RETRY_S = 0.5
LOOK_S = 0.02
SILENT_S = 10.0
"""Without a sign of life for so long it does not come back by itself; it beats every second."""
LAST_WORDS_S = 1.0
"""For the stacks of its threads."""
LATE_S = 2.0
"""A launcher that looks later than this was stopped itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bindings:
    """Where the lighthouse listens. Port 0 takes a free one."""

    gateway: str = "127.0.0.1:0"
    page: str = "127.0.0.1:0"


class Coordinator:
    """The lighthouse process of a run. Use from the main thread only."""

    def __init__(
        self, *, folder: RunFolder, bindings: Bindings, min_groups: int, sink: EventSink, tls: Tls | None = None
    ) -> None:
        self._tls = tls
        self._folder = folder
        self._bindings = bindings
        self._min_groups = min_groups
        self._sink = sink
        self._process: subprocess.Popen[bytes] | None = None
        self._returning: _Return | None = None
        self.gateway = ""
        """``http://HOST:PORT`` of the gateway."""
        self.page = ""
        """``http://HOST:PORT`` of its live page and metrics."""

        self._beats: int | None = None
        """The read end of its pipe."""
        self._heard = self._looked = time.monotonic()
        self._aborted = False

    def start(self) -> None:
        """Start it and wait until it listens. Raises ExitRequest(2) with what it said when it does not."""
        mark = self._spawn()
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_LIMIT_S
        ended = os.pidfd_open(process.pid)
        try:
            while not self._listens():
                if wait([ended], LOOK_S) or time.monotonic() > deadline:
                    process.kill()
                    raise ExitRequest(Exit.BAD_CONFIG, f"the lighthouse did not start: {_said(self._log, mark)}")
        finally:
            os.close(ended)

    def keep(self) -> str | None:
        """Start it again if it has died; to be called often, never blocks. Returns what people should know of it.

        Raises ExitRequest(3) when it cannot be started for a minute.
        """
        assert self._process is not None
        code = self._process.poll()
        if self._returning is None:
            if code is None:
                return self._end_silent()
            self._returning = _Return(until=time.monotonic() + START_LIMIT_S, mark=self._spawn())
            return f"the lighthouse ended ({describe_code(code)}): starting it again"
        if self._listens():
            self._returning = None
            return f"the lighthouse is back at {self.gateway}"
        return self._try_again(self._returning, ended=code is not None)

    def _end_silent(self) -> str | None:
        """End a lighthouse that has not given a sign for long: first so that it can tell where it hangs."""
        now = time.monotonic()
        asleep, self._looked = now - self._looked > LATE_S, now
        if self._beat() or asleep:  # whoever slept itself may not judge: its lighthouse may have slept with it
            self._heard = now
        silent = now - self._heard
        assert self._process is not None
        if silent > SILENT_S + LAST_WORDS_S:
            self._process.kill()
        elif silent > SILENT_S and not self._aborted:
            self._aborted = True
            self._process.send_signal(signal.SIGABRT)
            return f"the lighthouse has been silent for {SILENT_S:g} s: ending it"
        return None

    def _beat(self) -> bool:
        """Whether there was a sign of life since the last look."""
        assert self._beats is not None
        try:
            return bool(os.read(self._beats, 1 << 16))
        except BlockingIOError:
            return False

    def _try_again(self, back: _Return, *, ended: bool) -> str | None:
        """It does not listen yet, or it ended before it did."""
        now, said = time.monotonic(), _said(self._log, back.mark)
        if now > back.until:
            raise ExitRequest(Exit.QUORUM_LOST, f"the lighthouse cannot be started again: {said}")
        if not ended:
            return None
        if back.retry_at is None:
            back.retry_at = now + RETRY_S
            told, back.said = back.said, said
            return None if said == told else f"the lighthouse did not start: {said}; trying again"
        if now >= back.retry_at:
            back.retry_at, back.mark = None, self._spawn()
        return None

    def signal(self, number: int) -> bool:
        """Send its process a signal, as a fault. False when it does not run."""
        if self._process is None or self._process.poll() is not None or self._returning is not None:
            return False
        self._process.send_signal(number)
        return True

    def stop(self, *, grace_s: float = 5.0) -> None:
        """End it: it has stored all it must remember before it answered anybody."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close_beats()

    def _arguments(self, address: Path) -> list[str]:
        return [
            "--bind",
            self._bindings.gateway,
            "--http",
            self._bindings.page,
            "--min-groups",
            str(self._min_groups),
            "--state",
            str(self._folder.lighthouse_state),
            "--events",
            str(self._folder.event_log("lighthouse")),
            "--address-file",
            str(address),
            *(self._tls.options() if self._tls is not None else ()),
        ]

    @property
    def _address(self) -> Path:
        return self._folder.events / "lighthouse.address"

    @property
    def _log(self) -> Path:
        return self._folder.root / "logs" / "lighthouse.log"

    def _spawn(self) -> int:
        """Begin a process. Returns where in the log its words begin."""
        self._address.unlink(missing_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        arguments = self._arguments(self._address)
        beats, pipe = os.pipe()
        os.set_blocking(beats, False)
        with self._log.open("ab") as output:
            mark = output.tell()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ops.launch.leash",
                    str(os.getpid()),
                    "lighthouse",
                    *arguments,
                    "--beat",
                    str(pipe),
                ],
                pass_fds=(pipe,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        os.close(pipe)
        self._close_beats()
        self._beats, self._aborted = beats, False
        self._heard = self._looked = time.monotonic()
        return mark

    def _close_beats(self) -> None:
        if self._beats is not None:
            os.close(self._beats)
            self._beats = None

    def _listens(self) -> bool:
        """Whether it has written its addresses; takes them in."""
        if not self._address.exists():
            return False
        self.gateway, self.page = _parse_address(self._address.read_text())
        assert self._process is not None
        self._heard = self._looked = time.monotonic()
        self._sink(
            "lighthouse", pids=[self._process.pid], host=socket.gethostname(), gateway=self.gateway, page=self.page
        )
        # Groups hold this address: a successor must listen on the same one.
        self._bindings = Bindings(gateway=_host_port(self.gateway), page=_host_port(self.page) or self._bindings.page)
        return True


@dataclasses.dataclass
class _Return:
    """A lighthouse on its way back. Moments on the monotonic clock."""

    until: float
    mark: int
    """Where in its log the words of the newest process begin."""
    retry_at: float | None = None
    said: str = ""


def _said(log: Path, mark: int) -> str:
    """What the lighthouse wrote since ``mark``: its own last word where it had one."""
    lines = log.read_bytes()[mark:].decode(errors="replace").strip().splitlines()
    own = [line.removeprefix("lighthouse: ") for line in lines if line.startswith("lighthouse: ")]
    return "\n".join(own[-1:] or lines[-10:]) or "it said nothing"


def _parse_address(text: str) -> tuple[str, str]:
    """(gateway, page) of an address file: one URL a line."""
    lines = text.split()
    return lines[0], lines[1] if len(lines) > 1 else ""


def _host_port(url: str) -> str:
    return url.rpartition("://")[2].rstrip("/")
