"""How does a benchmark start processes that never outlive it, and read what they used?

Every child is tied to the thread that started it (``ops.launch.leash``), so Ctrl-C, an error or a SIGKILL of the
benchmark ends them all. Start them from the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ops.result import UsageError

_TICKS = os.sysconf("SC_CLK_TCK")


def command(module: str, *arguments: str) -> list[str]:
    """``python -m MODULE ARGUMENTS`` of a child that dies with the calling thread."""
    return [sys.executable, "-m", "ops.launch.leash", str(os.getpid()), module, *arguments]


@contextlib.contextmanager
def workplace(keep: Path | None = None) -> Iterator[Path]:
    """A folder for what the children write, gone afterwards unless it is given to ``keep``; SIGTERM ends the benchmark
    as Ctrl-C does. Main thread. Raises UsageError."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if keep is not None:
            try:
                keep.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{keep} cannot be made: {error.strerror}") from error
            yield keep.resolve()
            return
        with tempfile.TemporaryDirectory(prefix="phalanx-bench-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def started(module: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """A child while inside: (pid, the first line that it prints). What it says on stderr goes to ``log``. Raises
    RuntimeError with the end of the log when it ends before it printed a line."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command(module, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=None if env is None else {**os.environ, **env},
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{module} did not start: {last_lines(log)}")
        yield process.pid, line
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a child and everything below it, and wait for the child."""
    for pid in reversed(tree(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:  # grows while it is read
        found += children.get(one, [])
    return found


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return {name: value for name, _, value in (word.partition("=") for word in words) if name}
    return {}


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes; those that are gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def parent(pid: int) -> int | None:
    """The process that one is a child of; None when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def command_line(pid: int) -> str:
    """The words that a process was started with, with spaces between; empty when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def last_lines(log: Path, count: int = 10) -> str:
    """The end of a child's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) or "it said nothing"


def cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds, user and system, that processes have used so far; those that are gone count nothing."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total
