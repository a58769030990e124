"""A disk of a few megabytes that a test can fill, forbid and take away. Needs root: a tmpfs is mounted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def why_not() -> str:
    """Why no tmpfs can be mounted here, or nothing."""
    if os.geteuid():
        return "mounting a tmpfs needs root"
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return f"no tmpfs can be mounted: {probe.stderr.decode().strip()}" if probe.returncode else ""


class SmallDisk:
    """Mounted on a folder for the time of ``with``."""

    def __init__(self, folder: Path, *, size: str) -> None:
        self.folder = folder
        self._size = size
        self._filler = folder / "filler"

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={self._size}", "small-disk", str(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.take_away()

    def take_away(self) -> None:
        """What was on it is gone; the folder beneath appears. Does nothing the second time."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)

    def fill(self) -> None:
        """Nothing more fits, whatever is deleted beside it."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError:
                pass

    def clear(self) -> None:
        self._filler.unlink()

    def forbid(self) -> None:
        """Read-only. Waits for nobody: a file open for writing keeps it writable, so it is tried again."""
        while subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], capture_output=True).returncode:
            pass

    def allow(self) -> None:
        _mount("-o", "remount,rw", str(self.folder))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
