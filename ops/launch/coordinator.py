"""Who starts the lighthouse of a launch, and keeps it?

It is a process of its own, tied to the launcher's main thread. Should it die, it is started again on the same address
and the same state file: the groups loop until it is back. A port that is taken, or a bad state file, is the user's to
mend: exit 2.
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
from configs.words import Exit, ExitRequest

START_LIMIT_S = 60.0
LOOK_S = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bindings:
    """Where the lighthouse listens. Port 0 takes a free one."""

    gateway: str = "127.0.0.1:0"
    page: str = "127.0.0.1:0"


class Coordinator:
    """The lighthouse process of a run. Use from the main thread only."""

    def __init__(self, *, folder: RunFolder, bindings: Bindings, min_groups: int, sink: EventSink) -> None:
        self._folder = folder
        self._bindings = bindings
        self._min_groups = min_groups
        self._sink = sink
        self._process: subprocess.Popen[bytes] | None = None
        self.gateway = ""
        """``http://HOST:PORT`` of the gateway."""
        self.page = ""
        """``http://HOST:PORT`` of its live page and metrics."""

    def start(self) -> None:
        """Start it and wait until it listens. Raises ExitRequest(2) with what it said when it does not."""
        address = self._folder.events / "lighthouse.address"
        address.unlink(missing_ok=True)
        log = self._folder.root / "logs" / "lighthouse.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            mark = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ops.launch.leash", str(os.getpid()), "lighthouse", *self._arguments(address)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        self._wait_for(address, log, mark)
        self._sink(
            "lighthouse", pids=[self._process.pid], host=socket.gethostname(), gateway=self.gateway, page=self.page
        )
        # Groups hold this address: a successor must listen on the same one.
        self._bindings = Bindings(gateway=_host_port(self.gateway), page=_host_port(self.page) or self._bindings.page)

    def ended(self) -> int | None:
        """Its exit code once it has ended."""
        return None if self._process is None else self._process.poll()

    def stop(self, *, grace_s: float = 5.0) -> None:
        """End it: it has stored all it must remember before it answered anybody."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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
        ]

    def _wait_for(self, address: Path, log: Path, mark: int) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_LIMIT_S
        ended = os.pidfd_open(process.pid)
        try:
            while not address.exists():
                if wait([ended], LOOK_S) or time.monotonic() > deadline:
                    process.kill()
                    raise ExitRequest(Exit.BAD_CONFIG, f"the lighthouse did not start: {_said(log, mark)}")
        finally:
            os.close(ended)
        self.gateway, self.page = _parse_address(address.read_text())


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
    return url.removeprefix("http://").rstrip("/")
