"""Lifelines: the death of any rank is everybody's within moments, and a rank that ends says with which code."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from configs.words import Exit
from replica_groups.introduction import TurnedAway
from replica_groups.lifelines import Hub, Line
from replica_groups.signals import Signals
from trainer import connection

LIMIT_S = 20

RANK = """
    import sys, time
    from replica_groups.lifelines import Line
    line = Line(address=sys.argv[1], rank=1, on_message=lambda *_: None, on_broken=lambda _: None)
    line.start()
    line.send({"hello": 1})
    time.sleep(3600)
"""
RANK_ZERO = """
    import time
    from replica_groups.lifelines import Hub
    hub = Hub(host="127.0.0.1", world=2, on_message=lambda *_: None, on_broken=lambda _: None)
    print(hub.address, flush=True)
    hub.start()
    time.sleep(3600)
"""


class Heard:
    """What one end heard, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.broken: queue.Queue[str] = queue.Queue()

    def callbacks(self) -> dict[str, Any]:
        return {"on_message": lambda rank, message: self.messages.put((rank, message)), "on_broken": self.broken.put}


class Leaves:
    """A leaver that stays."""

    def __init__(self) -> None:
        self.codes: queue.Queue[tuple[Exit, str]] = queue.Queue()

    def leave(self, code: Exit, reason: str) -> None:
        self.codes.put((code, reason))


@pytest.fixture
def process():
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(program), *args]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def lines(hub: Hub, heard: dict[int, dict[str, Any]]) -> dict[int, Line]:
    """Ranks of this process, connected and started."""
    accepting = threading.Thread(target=hub.start)
    accepting.start()
    made = {rank: Line(address=hub.address, rank=rank, **callbacks) for rank, callbacks in heard.items()}
    accepting.join(LIMIT_S)
    for line in made.values():
        line.start()
    return made


def test_rank_zero_notices_the_sigkill_of_a_rank(process):
    heard = Heard()
    hub = Hub(host="127.0.0.1", world=2, **heard.callbacks())
    rank = process(RANK, hub.address)
    hub.start()
    assert heard.messages.get(timeout=LIMIT_S) == (1, {"hello": 1})
    assert heard.broken.empty()
    rank.send_signal(signal.SIGKILL)
    assert heard.broken.get(timeout=LIMIT_S) == "rank 1 died"


def test_rank_notices_the_sigkill_of_rank_zero(process):
    heard = Heard()
    zero = process(RANK_ZERO)
    line = Line(address=zero.stdout.readline().strip(), rank=1, **heard.callbacks())
    line.start()
    zero.send_signal(signal.SIGKILL)
    assert heard.broken.get(timeout=LIMIT_S) == "rank 0 died"


def test_every_rank_hears_what_rank_zero_broadcasts_in_order():
    heard = {1: Heard(), 2: Heard()}
    hub = Hub(host="127.0.0.1", world=3, **Heard().callbacks())
    lines(hub, {rank: h.callbacks() for rank, h in heard.items()})
    big = {"text": "x" * 200_000}  # more than one read
    for message in ({"n": 1}, big, {"n": 2}):
        hub.broadcast(message)
    for h in heard.values():
        assert [h.messages.get(timeout=LIMIT_S)[1] for _ in range(3)] == [{"n": 1}, big, {"n": 2}]


def test_broadcast_reaches_the_others_when_one_rank_is_gone():
    heard = {1: Heard(), 2: Heard()}
    zero = Heard()
    hub = Hub(host="127.0.0.1", world=3, **zero.callbacks())
    made = lines(hub, {rank: h.callbacks() for rank, h in heard.items()})
    made[1]._tie.socket.shutdown(socket.SHUT_RDWR)
    for n in range(20):  # the first sends to a closed socket may still succeed
        hub.broadcast({"n": n})
    assert [heard[2].messages.get(timeout=LIMIT_S)[1]["n"] for _ in range(20)] == list(range(20))


def test_rank_that_says_leaving_is_no_death():
    zero, other = Heard(), Heard()
    hub = Hub(host="127.0.0.1", world=3, **zero.callbacks())
    made = lines(hub, {1: Heard().callbacks(), 2: other.callbacks()})
    made[1].send({"leaving": 6, "reason": "disk full"})
    assert zero.messages.get(timeout=LIMIT_S) == (1, {"leaving": 6, "reason": "disk full"})
    made[1]._tie.socket.shutdown(socket.SHUT_RDWR)
    made[2].send({"leaving": 0, "reason": ""})
    zero.messages.get(timeout=LIMIT_S)
    assert zero.broken.empty()


def test_code_of_one_rank_becomes_the_code_of_its_whole_group():
    """Rank 2 ends with 6: rank 0 ends with 6, and through it rank 1."""
    zero, one = Leaves(), Leaves()
    signals = Signals()
    hub = Hub(
        host="127.0.0.1",
        world=3,
        on_message=lambda rank, message: connection._hear_fellow(rank, message, signals, zero),
        on_broken=connection._on_broken(zero),
    )
    made = lines(
        hub,
        {
            1: {
                "on_message": lambda _, message: connection._hear(message, signals, one),
                "on_broken": connection._on_broken(one),
            },
            2: Heard().callbacks(),
        },
    )
    made[2].send({"leaving": 6, "reason": "disk full"})
    code, reason = zero.codes.get(timeout=LIMIT_S)
    assert (code, reason) == (Exit.CHECKPOINT, "rank 2: disk full")
    hub.broadcast({"leaving": int(code), "reason": reason})  # rank 0's last words
    assert one.codes.get(timeout=LIMIT_S) == (Exit.CHECKPOINT, "rank 2: disk full")


@pytest.mark.parametrize("code", [Exit.DONE, Exit.DRAINED])
def test_end_of_the_run_on_one_rank_does_not_cut_rank_zero_short(code):
    zero = Leaves()
    connection._hear_fellow(1, {"leaving": int(code), "reason": "done"}, Signals(), zero)
    assert zero.codes.empty()


def test_death_of_a_rank_ends_the_incarnation():
    zero = Leaves()
    connection._on_broken(zero)("rank 1 died")
    assert zero.codes.get_nowait() == (Exit.INCARNATION_OVER, "rank 1 died")


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b'{"rank": 7}\n', b'{"rank": "1"}\n', b"[1]\n"])
def test_strangers_are_turned_away_and_the_ranks_are_waited_for(said):
    hub = Hub(host="127.0.0.1", world=2, **Heard().callbacks())
    host, _, port = hub.address.rpartition(":")

    def come() -> None:
        stranger = socket.create_connection((host, int(port)))
        stranger.sendall(said)
        stranger.close()
        come.line = Line(address=hub.address, rank=1, on_message=lambda *_: None, on_broken=lambda _: None)

    threading.Thread(target=come).start()
    hub.start()
    assert list(hub._lines) == [1]


def meet(*, theirs: str, mine: str) -> tuple[Hub, Line]:
    """A hub with one secret and rank 1 with another."""
    hub = Hub(host="127.0.0.1", world=2, **Heard().callbacks(), secret=theirs)
    threading.Thread(target=hub.start, daemon=True).start()
    return hub, Line(address=hub.address, rank=1, **Heard().callbacks(), secret=mine)


def test_who_shares_the_secret_is_let_in():
    hub, _ = meet(theirs="open sesame", mine="open sesame")
    assert list(hub._lines) in ([1], [])  # it may not have looked yet; Line returned, so rank 0 has answered


@pytest.mark.parametrize(("theirs", "mine"), [("a", "b"), ("a", ""), ("", "b")])
def test_another_secret_is_told_and_refused(theirs, mine):
    with pytest.raises(TurnedAway, match="another shared secret"):
        meet(theirs=theirs, mine=mine)


def test_what_was_overheard_serves_nobody():
    """An introduction is bound to rank 0's nonce, and the secret is in none of it."""
    hub = Hub(host="127.0.0.1", world=2, **Heard().callbacks(), secret="open sesame")
    threading.Thread(target=hub.start, daemon=True).start()
    heard: list[bytes] = []
    host, _, port = hub.address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as between:

        def relay() -> None:
            line, _ = between.accept()
            with socket.create_connection((host, int(port))) as onward:
                heard.append(onward.recv(4096))
                line.sendall(heard[-1])
                heard.append(line.recv(4096))  # kept, never handed on
            line.close()

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(OSError):
            Line(address=f"127.0.0.1:{between.getsockname()[1]}", rank=1, **Heard().callbacks(), secret="open sesame")
        thread.join(LIMIT_S)
    assert b"sesame" not in b"".join(heard)
    with socket.create_connection((host, int(port))) as replay:
        assert json.loads(replay.recv(4096))["nonce"] != json.loads(heard[0])["nonce"]
        replay.sendall(heard[1])
        assert b"another shared secret" in replay.recv(4096)
        assert replay.recv(4096) == b""
    assert hub._lines == {}


def test_silent_strangers_do_not_hold_up_the_ranks():
    hub = Hub(host="127.0.0.1", world=2, **Heard().callbacks())
    host, _, port = hub.address.rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(2)]
    began = time.monotonic()
    made = lines(hub, {1: Heard().callbacks()})
    assert time.monotonic() - began < 4.0, "one introduction may take 5 s"
    assert list(hub._lines) == list(made)
    for stranger in strangers:
        stranger.close()
