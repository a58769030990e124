"""The lighthouse of a group that was started without one (plain torchrun): rank 0 runs it as its own child."""

from __future__ import annotations

import subprocess
import sys
import time

from configs.run_folder import RunFolder
from configs.schema import Config
from configs.tls import Tls
from configs.words import Exit, ExitRequest

_START_LIMIT_S = 60.0


def start_lighthouse(config: Config, run: RunFolder, *, tls: Tls | None) -> str:
    """Start the coordinator on free loopback ports; it dies with this process. Returns its URL."""
    address = run.events / "lighthouse.address"
    run.events.mkdir(parents=True, exist_ok=True)
    address.unlink(missing_ok=True)
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lighthouse",
            "--die-with-parent",
            *("--min-groups", str(config.fault_tolerance.min_groups)),
            *("--state", str(run.lighthouse_state)),
            *("--events", str(run.event_log("lighthouse"))),
            *("--address-file", str(address)),
            *(tls.options() if tls is not None else ()),
        ],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + _START_LIMIT_S
    while not address.exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise ExitRequest(Exit.BAD_CONFIG, f"the lighthouse did not start (exit code {child.poll()})")
        time.sleep(0.02)
    return address.read_text().split()[0]
