"""Who is at the other end of a lifeline? The first words on it, by which a rank and its rank 0 know each other.

Rank 0 speaks first, with a nonce; the rank answers with its number, a nonce of its own and a seal over all of it under
the shared secret; rank 0 seals its answer likewise. So the secret never travels, nothing that was overheard serves
twice, and a rank obeys no stranger. Without a secret the seals are empty. Called by lifelines.py.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from typing import Any

from configs.secret import seal

_LIMIT_S = 5.0
_LIMIT_BYTES = 512
_NONCE_BYTES = 16
OTHER_SECRET = "another shared secret (PHALANX_SECRET) than rank 0's"


class TurnedAway(Exception):
    """The other end is not of this group, or does not take us for one of it."""


def introduced(line: socket.socket, *, secret: str) -> int | None:
    """Rank 0's side: the rank at the other end; None for a stranger, who may be silent or talk nonsense."""
    line.settimeout(_LIMIT_S)
    try:
        own = secrets.token_hex(_NONCE_BYTES)
        _say(line, {"nonce": own})
        said = _hear(line)
        rank, theirs = said["rank"], said["nonce"]
        if type(rank) is not int or type(theirs) is not str:
            return None
        if not hmac.compare_digest(str(said["seal"]).encode(), seal(secret, "rank", rank, own, theirs).encode()):
            _say(line, {"refused": OTHER_SECRET})
            return None
        _say(line, {"seal": seal(secret, "rank 0", rank, own, theirs)})
    except (OSError, ValueError, TypeError, KeyError, TurnedAway):
        return None
    line.settimeout(None)
    return rank


def introduce(line: socket.socket, *, rank: int, secret: str) -> None:
    """The rank's side. Waits for rank 0 as long as it lives. Raises TurnedAway with the reason, OSError when it is
    gone."""
    try:
        own, theirs = secrets.token_hex(_NONCE_BYTES), str(_hear(line)["nonce"])
        _say(line, {"rank": rank, "nonce": own, "seal": seal(secret, "rank", rank, theirs, own)})
        answer = _hear(line)
        if "refused" in answer:
            raise TurnedAway(f"rank 0 refuses rank {rank}: {answer['refused']}")
        if not hmac.compare_digest(str(answer["seal"]).encode(), seal(secret, "rank 0", rank, theirs, own).encode()):
            raise TurnedAway(f"rank {rank} has {OTHER_SECRET}")
    except (ValueError, TypeError, KeyError) as error:
        raise TurnedAway(f"who listens at the lifeline address is not rank 0: {error!r}") from error


def _say(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _hear(line: socket.socket) -> dict[str, Any]:
    """One line, and not a byte of the next."""
    data = b""
    while not data.endswith(b"\n"):
        byte = line.recv(1)
        if not byte:
            raise ConnectionResetError("the other end of the lifeline is gone")
        data += byte
        if len(data) > _LIMIT_BYTES:
            raise TurnedAway("the other end does not speak as a lifeline does")
    said = json.loads(data)
    if not isinstance(said, dict):
        raise TurnedAway("the other end does not speak as a lifeline does")
    return said
