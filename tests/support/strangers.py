"""Ranks of groups that do not belong: another secret, another library, other bits; and garbage at every open port."""

from __future__ import annotations

import os
import socket
from typing import Any

import psutil

from ops.launch.ranks import RankSpec, run_trainer

SECRET = "open sesame"


def run_with_secret(config: Any, spec: RankSpec) -> None:
    """Be a rank of the run. (The warm server's environment is older than the test.)"""
    os.environ["PHALANX_SECRET"] = SECRET
    run_trainer(config, spec)


def run_with_other_secret(config: Any, spec: RankSpec) -> None:
    os.environ["PHALANX_SECRET"] = "open barley"
    run_trainer(config, spec)


def run_with_other_library(config: Any, spec: RankSpec) -> None:
    """torch and numpy of other versions, on another processor: everything is to be named at once."""
    import importlib.metadata

    import torch

    true_version = importlib.metadata.version
    importlib.metadata.version = lambda name: "1.26" if name == "numpy" else true_version(name)
    torch.backends.cpu.get_cpu_capability = lambda: "DEFAULT"
    run_with_secret(config, spec)


def run_with_other_bits(config: Any, spec: RankSpec) -> None:
    """A kernel that rounds otherwise."""
    from trainer import compute

    true_loss = compute.token_loss
    compute.token_loss = lambda logits, labels: true_loss(logits, labels) * (1 + 2**-20)
    run_with_secret(config, spec)


def ports_of(pids: list[int]) -> list[tuple[str, int]]:
    """Every address at which these processes listen."""
    found = {
        (connection.laddr.ip, connection.laddr.port)
        for pid in pids
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    return sorted(found)


def throw_garbage(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Noise, an unfinished request and silence, at each of them. Returns the connections, all still open."""
    held = []
    for address in addresses:
        for words in (os.urandom(4096), b"GET /phalanx HTTP/1.1\r\nHost: ", b"\xff" * 64, b""):
            line = socket.create_connection(address)
            line.setblocking(False)
            held.append(line)
            try:
                line.send(words)
            except OSError:
                continue  # cut off already
    return held
