"""How are small files read that anybody may have put there? Regular files alone, and JSON of whatever shape.

What cannot be used is an OSError or a ValueError and nothing else: a FIFO, which would wait for its writer for ever,
and JSON that is nested deeper than the parser goes among them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def read_regular(path: Path) -> bytes:
    """All of a regular file. Raises OSError, for a FIFO, a socket and a device as well."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO is opened without waiting for a writer
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def parse_json(data: bytes) -> Any:
    """What the bytes mean. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object. Raises OSError, and ValueError for any other content."""
    found = parse_json(read_regular(path))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
