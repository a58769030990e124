"""What is the secret that the processes of a run share, and where must there be one? The one place that reads it.

It comes from ``PHALANX_SECRET``, or from the file that ``PHALANX_SECRET_FILE`` names, which only its owner may read.
Off loopback there must be one: without it whoever reaches a port could join, kill and read. Called by everything that
listens or speaks; imports nothing heavy.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from configs.words import Exit, ExitRequest

SECRET = "PHALANX_SECRET"
SECRET_FILE = "PHALANX_SECRET_FILE"
_SIOCGIFADDR = 0x8915
_MOST_BYTES = 4096


def read_secret(environ: Mapping[str, str] | None = None) -> str:
    """The shared secret, empty where there is none. Raises ExitRequest (2) for one that cannot be used."""
    env = os.environ if environ is None else environ
    given, path = env.get(SECRET, ""), env.get(SECRET_FILE, "")
    read = _from_file(Path(path)) if path else ""
    if given and read and given != read:
        raise _unusable(f"{SECRET} and the file {path} of {SECRET_FILE} hold different secrets: keep one of them")
    secret = given or read
    if not secret.isascii() or not secret.isprintable() or secret != secret.strip():
        source = SECRET if given else f"{path} ({SECRET_FILE})"
        raise _unusable(f"{source}: expected printable ASCII characters, none of them a space at either end")
    return secret


def secret_key() -> bytes | None:
    """The secret as a key for digests; None where there is none."""
    return read_secret().encode() or None


def seal(secret: str, *parts: str | int) -> str:
    """HMAC-SHA256, hex, over ``parts``; empty without a secret."""
    return hmac.new(secret.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest() if secret else ""


def is_loopback(host: str) -> bool:
    """Whether all addresses of ``host`` are this machine's own. Raises OSError for one that cannot be resolved."""
    found = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in socket.getaddrinfo(host, None)}
    return all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in found)


def address_of(interface: str) -> str:
    """IPv4 address of a network interface. Raises ValueError that names those there are."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise ValueError(
                f"fault_tolerance.interface = {interface!r} has no IPv4 address ({error.strerror}); there are {known}"
            ) from error
    return socket.inet_ntoa(found[20:24])


def guarded_address(interface: str) -> str:
    """The address that a group binds and advertises. Raises ExitRequest (2) when there is no such interface, or when it
    is not loopback and there is no secret."""
    try:
        host = address_of(interface)
    except ValueError as error:
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error
    if not read_secret() and not is_loopback(host):
        text = f"fault_tolerance.interface = {interface!r} ({host}) {OFF_LOOPBACK}"
        raise ExitRequest(Exit.BAD_CONFIG, text)
    return host


OFF_LOOPBACK = (
    "is not a loopback address: set PHALANX_SECRET or PHALANX_SECRET_FILE, the secret all processes of a run share"
)


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unusable(f"{path} ({SECRET_FILE}) is not a file")
            if status.st_mode & 0o077:
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                raise _unusable(
                    f"{path} ({SECRET_FILE}) has mode {mode}: only its owner may have a way to it; chmod 600"
                )
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(f"{path} ({SECRET_FILE}) cannot be read: {error.strerror}") from error
    text = data.decode("ascii", errors="replace").removesuffix("\n").removesuffix("\r")
    if not text or len(data) > _MOST_BYTES:
        raise _unusable(f"{path} ({SECRET_FILE}) holds {len(data)} bytes: expected one line, {_MOST_BYTES} at most")
    return text


def _unusable(text: str) -> ExitRequest:
    return ExitRequest(Exit.BAD_CONFIG, text)
