"""The door to peer transfer: serving this rank's state (server.py) and taking a state from peers (fetch.py)."""

from __future__ import annotations

from checkpointing.fetch import Received, fetch
from checkpointing.server import StateServer

__all__ = ["Received", "StateServer", "fetch"]
