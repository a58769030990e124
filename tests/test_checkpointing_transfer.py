"""Peer transfer: equal bits from a good source, and the right end of every bad one."""

from __future__ import annotations

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from checkpointing.errors import TransferError, TransferStopped
from checkpointing.memory import Buffer, ShardBytes
from checkpointing.transfer import StateServer
from checkpointing.wire import Request, pack_json, read_json
from configs.failpoints import parse
from tests.support.proxy import Proxy
from tests.support.states import clocks, lineage, same, tensors
from tests.support.transfers import ROWS, WANTED, Healer, serving
from trainer.failpoints import Failpoints


@pytest.fixture
def serve():
    yield from serving()


@pytest.fixture
def state():
    return tensors(1, ROWS)


@pytest.mark.parametrize("secret", [None, b"key"], ids=["open", "secret"])
def test_every_kind_of_tensor_arrives_with_equal_bits_and_its_clocks(serve, state, secret):
    state["model.gaps"] = torch.randn(6, 8)[:, ::2]
    healer = Healer(state)
    healer.tensors["model.gaps"] = torch.full((6, 8), 99.0)[:, ::2]
    received = healer.fetch(serve(state, secret=secret).address, secret=secret)
    assert same(healer.tensors, state)
    assert received.clocks == clocks(12)
    assert received.bytes == sum(tensor.nbytes for tensor in state.values())
    assert healer.first_bytes == 1


class _Staged(ShardBytes):
    """A shard whose memory sockets cannot use, as that of a device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self._direct = None


@pytest.mark.parametrize("ours", ["window", "fetch"])
def test_memory_that_sockets_cannot_use_goes_through_a_reused_buffer(serve, state, ours, monkeypatch):
    monkeypatch.setattr(f"checkpointing.{ours}.ShardBytes", _Staged)
    healer = Healer(state)
    healer.fetch(serve(state).address)
    assert same(healer.tensors, state)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator on this machine")
def test_state_on_an_accelerator_arrives_through_pinned_memory(serve, state):
    assert Buffer().take(1).is_pinned()
    device = torch.accelerator.current_accelerator()
    held = {name: tensor.to(device) for name, tensor in state.items()}
    healer = Healer(held)
    healer.fetch(serve(held).address)
    assert same({name: tensor.cpu() for name, tensor in healer.tensors.items()}, state)


def middle_of(state) -> int:
    return sum(tensor.nbytes for tensor in state.values()) // 2


def test_a_flipped_byte_is_noticed_and_fetched_again(serve, state):
    flipped = []

    def flip_once(passed: int, data: bytes) -> bytes:
        if passed > middle_of(state) and not flipped:
            flipped.append(passed)
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    proxy = Proxy(serve(state).address, flip_once)
    healer = Healer(state)
    healer.fetch(proxy.address)
    assert flipped
    assert same(healer.tensors, state)
    assert proxy.passed < 1.3 * sum(tensor.nbytes for tensor in state.values()), "nothing starts over"
    proxy.close()


def test_a_source_that_always_lies_is_given_up(serve, state):
    proxy = Proxy(serve(state).address, lambda p, d: bytes([d[0] ^ 1]) + d[1:] if p > middle_of(state) else d)
    healer = Healer(state)
    with pytest.raises(TransferError, match=r"wrong digest|another chunk"):
        healer.fetch(proxy.address)
    assert healer.first_bytes == 1
    proxy.close()


def test_a_source_that_dies_is_replaced_without_starting_over(serve, state):
    rate = 8 * middle_of(state)  # slow enough that both have their part in it
    dying = Proxy(serve(state, rate_limit=rate).address, lambda p, d: None if p > middle_of(state) / 2 else d)
    second = Proxy(serve(state, rate_limit=rate).address, lambda _, d: d)
    healer = Healer(state)
    received = healer.fetch(dying.address, second.address)
    assert same(healer.tensors, state)
    assert received.sources == (dying.address, second.address)
    assert dying.passed + second.passed < 1.3 * sum(tensor.nbytes for tensor in state.values())
    dying.close()
    second.close()


def test_a_truncated_stream_without_another_source_is_an_error(serve, state):
    dying = Proxy(serve(state).address, lambda p, d: None if p > 1000 + middle_of(state) // 100 else d)
    with pytest.raises(TransferError, match="ended the transfer"):
        Healer(state).fetch(dying.address)
    assert dying.connections == 3, "two at once, and one more try"
    dying.close()


def test_a_dead_source_is_passed_over_and_named(serve, state):
    gone = serve(state)
    gone.stop()
    healer = Healer(state)
    assert healer.fetch(gone.address, serve(state).address).sources != ()
    with pytest.raises(TransferError, match=f"{gone.address}: .*refused"):
        healer.fetch(gone.address)
    with pytest.raises(TransferError, match="no source has this state"):
        healer.fetch()


def test_a_silent_source_is_given_up_and_another_is_used(serve, state):
    silent = socket.create_server(("127.0.0.1", 0))
    healer = Healer(state)
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    received = healer.fetch(address, serve(state).address, stall_s=0.2)
    assert address not in received.sources
    assert same(healer.tensors, state)
    silent.close()


def test_a_request_waits_for_its_window_and_a_late_one_is_refused(serve, state):
    server = serve(state, opened=False)
    healer = Healer(state)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(healer.fetch, server.address, stall_s=5.0)
        assert not early.done()
        server.open(**{**WANTED, "attempt": 4}, tensors=tensors(2, ROWS), clocks=clocks(12))  # of another attempt
        server.open(**WANTED, tensors=state, clocks=clocks(12))
        assert early.result(20).bytes
    assert same(healer.tensors, state)
    server.close()
    late = Healer(state)
    with pytest.raises(TransferError, match="attempt 5 is over"):
        late.fetch(server.address)
    assert late.first_bytes == 0


def test_a_window_that_never_opens_ends_the_wait(serve, state):
    server = serve(state, opened=False, window_wait_s=0.1)
    with pytest.raises(TransferError, match="did not open"):
        Healer(state).fetch(server.address)


@pytest.mark.parametrize("other", [{"lineage": lineage(12, 2)}, {"quorum_id": 1}], ids=["lineage", "quorum"])
def test_another_state_of_the_same_attempt_is_refused(serve, state, other):
    healer = Healer(state)
    with pytest.raises(TransferError, match="this source holds"):
        healer.fetch(serve(state).address, **other)
    assert healer.first_bytes == 0


def test_closing_the_window_ends_a_stuck_healer_and_frees_the_tensors(serve):
    big = {"model.weight": torch.ones(4 << 20)}  # one chunk of 16 MB: more than a connection holds
    server = StateServer(chunk_bytes=16 << 20)
    server.open(**WANTED, tensors=big, clocks=clocks(12))
    stuck = socket.create_connection(tuple(server.address.split(":")))
    read = stuck.makefile("rb", buffering=0).read
    assert read_json(read, 1 << 20)["nonce"]
    stuck.sendall(pack_json({**Request(**WANTED).to_json(), "nonce": "", "mac": ""}))
    while read_json(read, 1 << 24)["status"] == "wait":
        pass
    stuck.sendall(pack_json({"chunks": [0]}))
    assert stuck.recv(1)  # the source is in the middle of the chunk, and nobody reads on
    server.close()
    assert not any(thread.name == "state-source" and _serves(thread) for thread in threading.enumerate())
    big["model.weight"].zero_()
    server.open(**{**WANTED, "attempt": 6}, tensors=big, clocks=clocks(12))
    healer = Healer(big)
    healer.fetch(server.address, attempt=6)  # a failed heal does not spoil the next
    assert same(healer.tensors, big)
    stuck.close()
    server.stop()


def _serves(thread: threading.Thread) -> bool:
    """The thread is where it may read tensors."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "_serve":
        frame = frame.f_back
    return frame is not None


def test_a_healer_leaves_at_once_when_its_attempt_is_over(serve, state):
    server = serve(state, rate_limit=50_000)
    healer = Healer(state)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(healer.fetch, server.address)
        while not healer.first_bytes:
            assert not running.done()
        healer.leave.set()
        with pytest.raises(TransferStopped):
            running.result(20)
    assert healer.first_bytes == 1
    server.close()


def test_closing_the_window_ends_a_transfer_in_progress(serve, state):
    server = serve(state, rate_limit=50_000)
    healer = Healer(state)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(healer.fetch, server.address)
        while not healer.first_bytes:
            assert not running.done()
        server.close()
        with pytest.raises(TransferError, match="attempt 5 is over"):
            running.result(20)


@pytest.mark.parametrize(("theirs", "mine"), [(b"key", None), (b"key", b"other"), (None, b"key")])
def test_nothing_passes_between_those_who_do_not_share_the_secret(serve, state, theirs, mine):
    healer = Healer(state)
    with pytest.raises(TransferError, match="authentication failed"):
        healer.fetch(serve(state, secret=theirs).address, secret=mine)
    assert healer.first_bytes == 0


@pytest.mark.parametrize("lax", ["server", "line"])
def test_each_side_checks_the_other_whatever_the_other_checks(serve, state, monkeypatch, lax):
    monkeypatch.setattr(f"checkpointing.{lax}.check_signature", lambda *_, **__: None)
    with pytest.raises(TransferError, match="authentication failed"):
        Healer(state).fetch(serve(state, secret=b"key").address, secret=b"other")


def test_off_loopback_a_secret_is_required():
    with pytest.raises(ValueError, match="PHALANX_SECRET"):
        StateServer(host="0.0.0.0")


def test_a_state_that_does_not_fit_touches_nothing(serve, state):
    healer = Healer(state)
    healer.tensors["model.renamed"] = healer.tensors.pop("model.half")
    healer.tensors["model.weight"] = torch.full((ROWS, 4), 99.0)
    with pytest.raises(TransferError, match=r"(?s)model\.half.*model\.renamed.*model\.weight"):
        healer.fetch(serve(state).address)
    assert healer.first_bytes == 0


def test_strangers_do_not_hurt_a_source(serve, state):
    server = serve(state)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", b"\xff" * 100):
        with socket.create_connection(tuple(server.address.split(":"))) as stranger:
            stranger.sendall(garbage)
    healer = Healer(state)
    healer.fetch(server.address)
    assert same(healer.tensors, state)


def test_failpoints_are_passed_with_every_chunk_on_each_side(serve, state):
    passed: dict[str, list[tuple[int, int]]] = {"heal_send": [], "heal_recv": []}

    def failpoint(name: str, **context) -> None:
        assert context["step"] == 12
        passed[name].append((context["done"], context["total"]))

    Healer(state).fetch(serve(state, failpoint=failpoint).address, failpoint=failpoint)
    total = passed["heal_recv"][0][1]
    assert total > 1
    assert sorted(passed["heal_send"]) == [(done, total) for done in range(total)]
    assert sorted(passed["heal_recv"]) == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("fault", ["corrupt", "truncate"])
def test_bytes_that_a_failpoint_spoils_are_not_taken(serve, state, fault):
    told = []
    points = [parse(f"g0:heal_send@.30:{fault}")]
    hit = Failpoints(points, group="g0", rank=0, past=(), sink=lambda event, **fields: told.append(fields["action"]))
    healer = Healer(state)
    healer.fetch(serve(state, failpoint=hit).address)
    assert told == [fault]
    assert same(healer.tensors, state)


def test_clocks_of_another_state_are_refused(serve, state):
    with pytest.raises(ValueError, match="on offer"):
        serve(state, opened=False).open(**WANTED, tensors=state, clocks=clocks(13))
