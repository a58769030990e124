"""Strangers at a source's port, of real sockets: they get so long and no longer, and keep no healer out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from checkpointing import server as source
from checkpointing.wire import LENGTH, SMALL_FRAME
from tests.support.certificates import make_tls
from tests.support.states import clocks, same, tensors
from tests.support.transfers import ROWS, WANTED, Healer, serving

KEY = b"key"
FRAME = LENGTH.pack(SMALL_FRAME)
RECORD = b"\x16\x03\x01\x10\x00"
"""The head of a TLS record of 4096 bytes."""
serve = pytest.fixture(serving)


@pytest.fixture
def state():
    return tensors(12, ROWS)


@pytest.fixture
def dribble():
    """Opens connections that begin a frame and send a byte of it now and then, until they are cut off."""
    over = threading.Event()
    with contextlib.ExitStack() as held:

        def start(address: str, count: int, *, every: float, begin: bytes = FRAME) -> list[socket.socket]:
            host, _, port = address.rpartition(":")
            lines = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)]
            for line in lines:
                line.sendall(begin)

            def spell():
                while not over.wait(every):
                    for line in lines:
                        with contextlib.suppress(OSError):
                            line.send(b"{")

            thread = threading.Thread(target=spell)
            thread.start()
            held.callback(thread.join)
            held.callback(over.set)
            return lines

        yield start


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_healer_is_served_while_strangers_hold_every_place(serve, state, dribble, encrypted, tmp_path):
    tls = make_tls(tmp_path) if encrypted else None
    server = serve(state, secret=KEY, tls=tls)
    dribble(server.address, 64, every=0.2, begin=RECORD if encrypted else FRAME)
    time.sleep(0.3)  # all of them stand there
    healer = Healer(state)
    began = time.monotonic()
    healer.fetch(server.address, secret=KEY, tls=tls)
    assert same(healer.tensors, state)
    assert time.monotonic() - began < source._HANDSHAKE_S / 2, "it had to wait until they were gone"


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_request_that_is_spelt_byte_by_byte_is_cut_off(serve, state, dribble, encrypted, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_HANDSHAKE_S", 1.0)
    server = serve(state, secret=KEY, tls=make_tls(tmp_path) if encrypted else None)
    lines = dribble(server.address, 3, every=0.1, begin=RECORD if encrypted else FRAME)
    began = time.monotonic()
    for line in lines:
        line.settimeout(10)
        with contextlib.suppress(ConnectionError):
            while line.recv(1000):
                pass
    assert 0.5 < time.monotonic() - began < 3.0


def test_guests_that_wait_for_their_window_are_not_crowded_out(serve, state, dribble):
    server = serve(state, secret=KEY, opened=False)
    healer = Healer(state)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(healer.fetch, server.address, secret=KEY)
        deadline = time.monotonic() + 10
        while not server._door._guests:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        dribble(server.address, 150, every=0.2)
        time.sleep(0.3)
        server.open(**WANTED, tensors=state, clocks=clocks(12))
        running.result(20)
    assert same(healer.tensors, state)


def test_places_are_free_again_when_everybody_has_left(serve, state, dribble):
    server = serve(state, secret=KEY)
    for line in dribble(server.address, 80, every=0.5):
        line.close()
    Healer(state).fetch(server.address, secret=KEY)
    deadline = time.monotonic() + 10
    while server._door._strangers or server._door._guests:
        assert time.monotonic() < deadline
        time.sleep(0.01)
