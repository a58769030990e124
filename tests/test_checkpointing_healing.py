"""Faults while healing, with real processes: whoever dies or stops, a state that counts is the source's to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from checkpointing.errors import TransferError
from checkpointing.wire import pack_header
from configs.words import Lineage
from tests.support.lighthouse import ROOT, wait_until
from tests.support.states import clocks, same, tensors
from tests.support.transfers import ROWS, WANTED, Healer, serving

SIZE = sum(tensor.nbytes for tensor in tensors(1, ROWS).values())
MANY_ROWS = 1_000_000
"""Of a state that is larger than what the kernel holds for a connection."""


@pytest.fixture
def serve():
    yield from serving()


@pytest.fixture
def state():
    return tensors(1, ROWS)


@pytest.fixture
def start():
    """Starts ``python -m MODULE ARGUMENTS``; killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(module: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def kill_at_half(process):
    def progress(done: int, total: int) -> None:
        if 2 * done >= total and process.poll() is None:
            process.kill()
            process.wait()

    return progress


def test_a_source_killed_at_half_spoils_its_attempt_and_not_the_next(serve, state, start):
    source = start("tests.support.source", ROWS, SIZE)
    address = source.stdout.readline().strip()
    healer = Healer(state)
    with pytest.raises(TransferError, match=address):
        healer.fetch(address, progress=kill_at_half(source))
    assert source.returncode == -signal.SIGKILL
    assert healer.first_bytes == 1, "what is half there is void"
    assert not same(healer.tensors, state)
    again = Healer(state)
    assert again.fetch(address, serve(state).address).bytes == SIZE
    assert same(again.tensors, state)


def test_one_of_two_sources_killed_at_half_is_replaced_by_the_other(serve, state, start):
    source = start("tests.support.source", ROWS, SIZE)
    address = source.stdout.readline().strip()
    other = serve(state, rate_limit=SIZE).address
    told: list[int] = []
    kill = kill_at_half(source)

    def progress(done: int, total: int) -> None:
        told.append(done)
        kill(done, total)

    healer = Healer(state)
    received = healer.fetch(address, other, progress=progress)
    assert source.returncode == -signal.SIGKILL
    assert same(healer.tensors, state)
    assert received.sources == (address, other), "both have their part in it"
    assert received.bytes == SIZE
    assert sorted(told) == sorted(set(told)), "no chunk counts twice: nothing starts over"


def test_a_stopped_healer_holds_nobody_and_is_not_healed_when_it_wakes(serve, start):
    held = tensors(1, MANY_ROWS)
    server = serve(held)
    stuck = start("tests.support.stopped_healer", MANY_ROWS, server.address)
    wait_until(lambda: os.waitid(os.P_PID, stuck.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    server.close()  # returns though the healer takes nothing
    held["model.weight"].add_(1.0)  # the group commits without it
    server.open(**{**WANTED, "attempt": 6}, tensors=held, clocks=clocks(12))
    next_one = Healer(held)
    next_one.fetch(server.address, attempt=6)
    assert same(next_one.tensors, held)
    os.kill(stuck.pid, signal.SIGCONT)
    assert stuck.stdout.readline().startswith("void: "), "a mixture of two states is not taken for one"


@pytest.mark.parametrize(
    "wrong",
    [{"quorum_id": WANTED["quorum_id"] + 1}, {"lineage": Lineage(11, WANTED["lineage"].quorum_id)}],
    ids=["quorum", "lineage"],
)
def test_a_chunk_of_another_quorum_or_lineage_is_not_taken(serve, state, wrong, monkeypatch):
    """A source that answers as it should and then sends from another state, whatever its bytes."""

    def header(request, chunk):
        return pack_header(type(request)(**{**WANTED, **wrong}), chunk)

    monkeypatch.setattr("checkpointing.server.pack_header", header)
    healer = Healer(state)
    with pytest.raises(TransferError, match="another chunk than"):
        healer.fetch(serve(state).address)
    assert healer.first_bytes == 0
