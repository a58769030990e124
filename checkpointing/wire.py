"""What do a healer and a source say to each other? The frames of peer transfer, as bytes and as typed values.

A connection: the source greets with a nonce; the healer requests one state by (attempt, quorum id, lineage); the source
answers ``wait`` until that window is open, then with the manifest, or ``refused``; the healer names chunks, each comes
as a header and raw bytes. Control frames are JSON with a length in front. The manifest holds every chunk's digest. With
a secret, request and manifest carry an HMAC over the other side's nonce and the digests are blake3, so the manifest
vouches for the bytes; without one nobody is kept out, and xxh3 finds damage at a fraction of the cost.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import xxhash
from blake3 import blake3

from checkpointing.state import Clocks, Shard
from configs.words import Lineage

PROTOCOL = 2
CHUNK_BYTES = 4 << 20
SMALL_FRAME = 64 << 10
"""Limit of a frame from somebody who has not shown the secret yet, and of requests."""
MANIFEST_FRAME = 256 << 20
NONCE_BYTES = 16
MAGIC = b"PHLX"
HEADER = struct.Struct("!4sQQQII")
"""magic, quorum id of the attempt, step and quorum id of the lineage, chunk number, bytes that follow."""
LENGTH = struct.Struct("!I")


@dataclasses.dataclass(frozen=True)
class Request:
    """Names one state in one attempt."""

    attempt: int
    quorum_id: int
    """Of the attempt's grant."""
    lineage: Lineage
    """Of the state wanted."""

    def to_json(self) -> dict[str, int]:
        """As a JSON object."""
        return {
            "attempt": self.attempt,
            "quorum_id": self.quorum_id,
            "step": self.lineage.step,
            "lineage_quorum_id": self.lineage.quorum_id,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Request:
        """Inverse of ``to_json``; other keys are ignored. Raises ValueError."""
        names = ("attempt", "quorum_id", "step", "lineage_quorum_id")
        numbers = [found.get(name) for name in names]
        if not all(type(n) is int and 0 <= n < 1 << 64 for n in numbers):
            raise ValueError("a request needs attempt, quorum_id, step and lineage_quorum_id")
        attempt, quorum_id, step, lineage_quorum_id = (int(str(n)) for n in numbers)
        return cls(attempt, quorum_id, Lineage(step, lineage_quorum_id))


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a manifest: its name, the shard of it that the source holds, and the digest of each chunk."""

    name: str
    shard: Shard
    nbytes: int
    digests: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A range of one tensor's shard."""

    index: int
    """Over the whole manifest."""
    name: str
    start: int
    stop: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Everything about a state but its bytes."""

    request: Request
    clocks: Clocks
    digest_kind: str
    chunk_bytes: int
    entries: tuple[Entry, ...]

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in the order of the closed list."""
        index = 0
        for entry in self.entries:
            for number, digest in enumerate(entry.digests):
                start = number * self.chunk_bytes
                yield Chunk(index, entry.name, start, min(start + self.chunk_bytes, entry.nbytes), digest)
                index += 1

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "request": self.request.to_json(),
            "clocks": self.clocks.to_json(),
            "digest_kind": self.digest_kind,
            "chunk_bytes": self.chunk_bytes,
            "tensors": [
                {"name": e.name, **dataclasses.asdict(e.shard), "nbytes": e.nbytes, "chunks": e.digests}
                for e in self.entries
            ],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Manifest:
        """Inverse of ``to_json``. Raises ValueError (also for missing keys and chunk counts that do not fit)."""
        try:
            chunk_bytes = int(found["chunk_bytes"])
            entries = tuple(_entry(e, chunk_bytes) for e in found["tensors"])
            clocks = Clocks.from_json(found["clocks"])
            return cls(Request.from_json(found["request"]), clocks, str(found["digest_kind"]), chunk_bytes, entries)
        except (KeyError, TypeError) as error:
            raise ValueError(f"the manifest is malformed: {error!r}") from None


def _entry(found: Mapping[str, Any], chunk_bytes: int) -> Entry:
    shape, offset, size = (tuple(int(n) for n in found[key]) for key in ("shape", "offset", "size"))
    nbytes, digests = int(found["nbytes"]), tuple(str(d) for d in found["chunks"])
    if not 0 < chunk_bytes < 1 << 32 or len(digests) != count_chunks(nbytes, chunk_bytes):
        raise ValueError(f"the manifest is malformed: {found['name']} has {len(digests)} chunks for {nbytes} bytes")
    return Entry(str(found["name"]), Shard(str(found["dtype"]), shape, offset, size), nbytes, digests)


def count_chunks(nbytes: int, chunk_bytes: int) -> int:
    """Chunks of a shard; none for an empty one."""
    return -(-nbytes // chunk_bytes)


def digest_kind(secret: bytes | None) -> str:
    """The digest of chunks between those who share ``secret``, or none."""
    return "xxh3_128" if secret is None else "blake3"


def chunk_digest(data: memoryview, *, kind: str) -> str:
    """Digest of one chunk, hex."""
    return xxhash.xxh3_128_hexdigest(data) if kind == "xxh3_128" else blake3(data).hexdigest()


def pack_header(request: Request, chunk: Chunk) -> bytes:
    """What precedes a chunk's bytes."""
    step, quorum_id = request.lineage
    return HEADER.pack(MAGIC, request.quorum_id, step, quorum_id, chunk.index, chunk.stop - chunk.start)


def pack_json(body: Mapping[str, Any]) -> bytes:
    """A control frame."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


def read_json(read: Callable[[int], bytes], limit: int) -> dict[str, Any]:
    """Read one control frame through ``read(n) -> exactly n bytes``. Raises ValueError."""
    (size,) = LENGTH.unpack(read(LENGTH.size))
    if size > limit:
        raise ValueError(f"a control frame of {size} bytes is too large")
    body = json.loads(read(size))
    if not isinstance(body, dict):
        raise ValueError("a control frame must be an object")
    return body


def sign(body: Mapping[str, Any], *, secret: bytes | None, nonce: str) -> dict[str, Any]:
    """``body`` with its ``mac`` over the other side's nonce. Without a secret the mac is empty."""
    return {**body, "mac": _mac(body, secret, nonce)}


def check_signature(body: Mapping[str, Any], *, secret: bytes | None, nonce: str) -> None:
    """Raises ValueError unless ``body`` was signed with our secret for our nonce."""
    rest = {key: value for key, value in body.items() if key != "mac"}
    if not hmac.compare_digest(str(body.get("mac")), _mac(rest, secret, nonce)):
        raise ValueError("authentication failed: the other side does not know the secret")


def _mac(body: Mapping[str, Any], secret: bytes | None, nonce: str) -> str:
    if secret is None:
        return ""
    text = json.dumps([nonce, body], separators=(",", ":"), sort_keys=True)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def spoiled(data: memoryview, fault: str | None) -> memoryview | bytes:
    """What an injected fault makes of the bytes of a chunk: one bit of it changed, or the first half alone."""
    if fault == "corrupt":
        return bytes([data[0] ^ 1]) + bytes(data[1:])
    return data[: len(data) // 2] if fault == "truncate" else data
