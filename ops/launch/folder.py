"""May this launcher use this run folder, and does its config fit what is there?

One launcher at a time (a lock that the kernel drops with the process); processes that an earlier launcher left behind
are waited for and named, never killed, for they are not ours. A folder that holds a history is resumed only by a config
that means the same training; what may change is said aloud.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.digest import differing, digest
from configs.dump import to_toml
from configs.keys import leaves, value_of
from configs.load import ConfigError, parse_text
from configs.run_folder import RunFolder, read_events, write_atomically
from configs.schema import Config
from configs.words import Exit, ExitRequest

OLD_LIMIT_S = 10.0
QUIET_SECTIONS = ("launch", "metrics", "chaos", "job")


class FolderLock:
    """Holds a run folder, or one group of it, until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises ExitRequest(2) that says who holds it, or why there can be none."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            text = f"{path.parent} cannot be used as a run folder: {error.strerror}; choose another job.dump_folder"
            raise ExitRequest(Exit.BAD_CONFIG, text) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            os.close(self._fd)
            raise ExitRequest(
                Exit.BAD_CONFIG, f"{path.parent} is in use by {holder}; stop it, or use another job.dump_folder"
            ) from None
        who = {"pid": os.getpid(), "host": socket.gethostname(), "t": time.time(), "command": " ".join(sys.argv)}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(who).encode() + b"\n", 0)

    def release(self) -> None:
        """Give it back. The file stays: removing it would race with the next holder."""
        os.close(self._fd)


def group_lock(folder: RunFolder, group: str) -> Path:
    """The lock file of one group, for launchers that join a run which another one started."""
    return folder.root / f".lock.{group}"


@dataclasses.dataclass(frozen=True)
class OldProcess:
    """A process of an earlier launch that still runs."""

    pid: int
    what: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.what})"


def old_processes(folder: RunFolder, *, host: str, groups: frozenset[str] | None = None) -> list[OldProcess]:
    """Processes that the event logs name on this host and that still run (of the given groups, or of all). A pid that
    now belongs to a younger process is another's."""
    return [
        OldProcess(pid, what)
        for pid, what, t in _named(folder, host, groups)
        if (started := started_t(pid)) is not None and started <= t + 1.0
    ]


def wait_for_old(
    folder: RunFolder, *, say: Callable[[str], None], groups: frozenset[str] | None = None, limit_s: float = OLD_LIMIT_S
) -> None:
    """Wait until an earlier launch's processes are gone. Raises ExitRequest(2) naming those that stay."""
    host = socket.gethostname()
    deadline = time.monotonic() + limit_s
    told = False
    while alive := old_processes(folder, host=host, groups=groups):
        names = ", ".join(map(str, alive))
        if time.monotonic() >= deadline:
            raise ExitRequest(
                Exit.BAD_CONFIG, f"{folder.root}: processes of an earlier launch still run: {names}; end them first"
            )
        if not told:
            say(f"waiting for processes of an earlier launch: {names}")
            told = True
        time.sleep(0.05)


def settle_config(folder: RunFolder, config: Config) -> list[str]:
    """Compare with the config the folder was made with, then write the new one. Returns what to warn of. Raises
    ExitRequest(6) when the folder holds the history of another training and ``checkpoint.fork`` is not set."""
    warnings: list[str] = []
    if folder.config.exists():
        warnings = _compare(folder, config)
    write_atomically(folder.config, to_toml(config))
    return warnings


def _compare(folder: RunFolder, config: Config) -> list[str]:
    try:
        before = parse_text(folder.config.read_text(), where=str(folder.config))
    except ConfigError as error:
        if not _has_history(folder):
            return [f"{folder.config} cannot be read and is replaced ({error})"]
        raise ExitRequest(
            Exit.CHECKPOINT, f"{folder.config}, the config of this run, cannot be read:\n{error}"
        ) from error
    changed = [key for key in leaves() if value_of(before, key) != value_of(config, key)]
    told = [f"{key}: {value_of(before, key)!r} -> {value_of(config, key)!r}" for key in changed]
    if digest(before) == digest(config):
        return [f"changed since this run folder was last used: {text}" for text in told]
    training = differing(before, config)
    keys = ", ".join(training)
    if not _has_history(folder):
        return [f"nothing was ever committed in {folder.root}: starting anew with another {keys}"]
    if config.checkpoint.fork:
        return [f"forking the history in {folder.root} although the training differs: {keys}"]
    different = "; ".join(text for text in told if text.partition(":")[0] in training) or keys
    raise ExitRequest(
        Exit.CHECKPOINT,
        f"{folder.root} holds a run of another training; nothing was changed in it. Different: {different}. "
        "Use another job.dump_folder, or checkpoint.fork = true to go on from its state as a new history",
    )


def _has_history(folder: RunFolder) -> bool:
    """Whether any group ever committed here."""
    logs = folder.events.glob("*.jsonl") if folder.events.is_dir() else ()
    return any(event.get("event") in ("commit", "confirmed") for path in logs for event in read_events(path))


def _named(folder: RunFolder, host: str, groups: frozenset[str] | None) -> Iterator[tuple[int, str, float]]:
    """(pid, what it was, when it was named) of every process of this host in the event logs."""
    for path in sorted(folder.events.glob("*.jsonl")) if folder.events.is_dir() else ():
        if groups is not None and path.stem not in groups:
            continue
        for event in read_events(path):
            if event.get("host") != host or event.get("event") not in ("start", "lighthouse"):
                continue
            what = path.stem if event["event"] == "start" else "lighthouse"
            pids = event.get("pids")
            for pid in pids if isinstance(pids, list) else ():
                if isinstance(pid, int):
                    yield pid, what, float(event["t"])


def started_t(pid: int) -> float | None:
    """When a running process started, unix seconds; None when there is none (a zombie is none)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if after_name[0] in "ZX":
        return None
    return _boot_t() + int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def _boot_t() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("btime")))


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["t"]))
        return f"pid {who['pid']} on {who['host']} since {since} ({who['command']})"
    except (ValueError, KeyError, OSError):
        return "another launcher"
