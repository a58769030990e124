"""Who carries faults out, and the bad network: with victims that only remember, and with real sockets."""

from __future__ import annotations

import functools
import signal
import socket
import threading
import time

import pytest

from configs.words import ExitRequest
from ops.chaos.driver import ChaosDriver, Strike, Target
from ops.chaos.hands import Hands
from ops.chaos.network import Hosts, Proxies
from ops.chaos.proxy import FaultProxy
from ops.launch import netns
from tests.support.logs import commit
from tests.support.states import Recorder

BOTH = {"g0": [0], "g1": [1]}


class Victim:
    """A supervisor that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.alive = True

    def strike(self, number, *, rank=None, announce=lambda: None):
        if self.alive:
            announce()
            self.heard.append((signal.Signals(number).name, rank))
        return self.alive

    def hold(self, held):
        self.heard.append(("hold", held))


class Scene:
    def __init__(self, network: Proxies | None = None) -> None:
        self.now = 0.0
        self.events = Recorder()
        self.lighthouse: list[int] = []
        self.victims = {"g0": Victim(), "g1": Victim()}
        self.hands = Hands(
            victims=self.victims,
            lighthouse=lambda number: self.lighthouse.append(number) or True,
            sink=self.events,
            network=network,
            clock=lambda: self.now,
        )

    def strike(self, **fields) -> bool:
        return self.hands.strike(Strike(**fields), 7)


def test_a_fault_is_announced_and_made():
    scene = Scene()
    assert scene.strike(group="g1", action="kill")
    assert scene.victims["g1"].heard == [("SIGKILL", None)]
    told = {"group": "g1", "failpoint": "every rank", "action": "kill", "step": 7, "seconds": None}
    assert scene.events.events == [{"event": "fault", **told}]
    assert scene.strike(target=Target.RANK, group="g0", rank=1, action="stop")
    assert scene.victims["g0"].heard == [("SIGSTOP", 1)]
    assert scene.events.events[-1]["failpoint"] == "rank 1"


def test_nobody_there_is_no_fault_and_is_not_announced():
    scene = Scene()
    scene.victims["g1"].alive = False
    assert not scene.strike(group="g1")
    assert not scene.strike(group="g7")
    assert not scene.strike(target=Target.NODE, group="g1", seconds=3.0)
    assert scene.events.events == []
    assert scene.victims["g1"].heard == [("hold", True), ("hold", False)]


def test_what_lasts_a_time_is_taken_back_after_it():
    scene = Scene()
    scene.strike(group="g1", action="stop", seconds=2.0)
    scene.strike(target=Target.LIGHTHOUSE, action="stop", seconds=3.0)
    scene.strike(target=Target.NODE, group="g0", seconds=4.0)
    scene.now = 1.9
    scene.hands.look()
    assert scene.victims["g1"].heard == [("SIGSTOP", None)]
    scene.now = 3.0
    scene.hands.look()
    scene.hands.look()
    assert scene.victims["g1"].heard == [("SIGSTOP", None), ("SIGCONT", None)]
    assert scene.lighthouse == [0, signal.SIGSTOP, signal.SIGCONT]
    assert scene.victims["g0"].heard == [("hold", True), ("SIGKILL", None)]
    scene.hands.close()
    assert scene.victims["g0"].heard[-1] == ("hold", False)


def test_a_node_leaves_and_joins():
    scene = Scene()
    scene.strike(target=Target.NODE, group="g1", action="drain")
    assert scene.victims["g1"].heard == [("hold", True), ("SIGTERM", 0)]
    scene.victims["g1"].alive = False
    assert scene.strike(target=Target.NODE, group="g1", action="kill"), "it stays away"
    assert scene.strike(target=Target.NODE, group="g1", action="join")
    assert scene.victims["g1"].heard[-1] == ("hold", False)


# ---- when ----------------------------------------------------------------------------------------------------------


class Battle:
    def __init__(self, *plan: Strike) -> None:
        self.struck: list[str | None] = []
        self.able = True
        self.driver = ChaosDriver(plan, strike=self._strike)
        self.lineage = 0

    def _strike(self, strike, step):
        if self.able:
            self.struck.append(strike.group)
        return self.able

    def commit(self, step: int, *, t: float | None = None, shares=BOTH, incarnations=(1, 1)) -> None:
        for group, number in zip(shares, incarnations, strict=False):
            self.driver.take(group, commit(step, shares, t=t, incarnation=number))

    def over(self, *points: str, rest: int = 2) -> bool:
        return self.driver.settled(failpoints=points, groups=2, rest=rest)


def test_faults_that_come_together_are_made_at_once():
    battle = Battle(Strike(group="g1", step=3), Strike(group="g0", step=3, apart=False), Strike(group="g1", step=4))
    battle.commit(3)
    assert battle.struck == ["g1", "g0"]
    battle.commit(9, incarnations=(1, 1))
    assert len(battle.struck) == 2, "both are away"


def test_a_moment_counts_from_the_first_commit_and_waits_for_nobody():
    battle = Battle(Strike(group="g1", at_s=5.0, apart=False), Strike(group="g1", at_s=6.0, apart=False))
    battle.driver.look(1000.0)
    battle.commit(1, t=100.0)
    battle.driver.look(104.9)
    assert battle.struck == []
    battle.able = False
    battle.driver.look(105.0)
    battle.able = True
    battle.driver.look(105.1)
    assert battle.struck == ["g1"], "what could not be made is tried again"
    battle.driver.look(200.0)
    assert battle.struck == ["g1", "g1"]


def test_a_run_has_settled_when_all_work_and_all_has_happened():
    battle = Battle(Strike(group="g1", step=2))
    battle.commit(1)
    assert not battle.over()
    battle.commit(2)
    assert battle.struck == ["g1"]
    for step in (3, 4, 5):
        battle.commit(step, shares={"g0": [0, 1], "g1": []})
    assert not battle.over(), "g1 is away"
    battle.commit(6, incarnations=(1, 2))
    assert not battle.over(), "one step together is not two"
    battle.commit(7, incarnations=(1, 2))
    battle.commit(8, incarnations=(1, 2))
    assert battle.over()
    assert not battle.over("g1:save_write#0:kill")
    fault = {"t": 9.0, "event": "fault", "incarnation": 2, "failpoint": "g1:save_write#0:kill", "action": "kill"}
    battle.driver.take("g1", fault)
    assert not battle.over("g1:save_write#0:kill"), "it is away again"
    for step in (9, 10, 11):
        battle.commit(step, incarnations=(1, 3))
    assert battle.over("g1:save_write#0:kill")


# ---- the network ---------------------------------------------------------------------------------------------------


class Echo:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(near,), daemon=True).start()

    def _answer(self, near: socket.socket) -> None:
        with near:
            while data := near.recv(65536):
                near.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def proxy():
    echo = Echo()
    proxy = FaultProxy(echo.address)
    yield proxy
    proxy.close()
    echo.close()


def dial(proxy: FaultProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=10)
    line.sendall(b"hello")
    return line


def answer(line: socket.socket, size: int = 5) -> bytes:
    data = b""
    while len(data) < size and (part := line.recv(size - len(data))):
        data += part
    return data


def test_a_good_network_passes_bytes_on(proxy):
    with dial(proxy) as line:
        assert answer(line) == b"hello"


def test_a_cut_ends_what_is_open_and_refuses_what_comes_until_it_is_mended(proxy):
    line = dial(proxy)
    assert answer(line) == b"hello"
    proxy.apply("cut")
    with pytest.raises(ConnectionError):
        line.recv(1) or (_ for _ in ()).throw(ConnectionError)
    with pytest.raises(ConnectionError):
        answer(dial(proxy)) or (_ for _ in ()).throw(ConnectionError)
    proxy.mend("cut")
    with dial(proxy) as again:
        assert answer(again) == b"hello"


def test_what_a_dropping_network_swallows_comes_when_it_is_mended(proxy):
    with dial(proxy) as line:
        assert answer(line) == b"hello"
        proxy.apply("drop")
        line.sendall(b"again")
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(1)
        line.settimeout(10)
        proxy.mend("drop")
        assert answer(line) == b"again"


def test_a_delay_and_a_rate_take_their_time(proxy):
    with dial(proxy) as line:
        assert answer(line) == b"hello"
        proxy.apply("delay", 0.2)
        began = time.monotonic()
        line.sendall(b"again")
        assert answer(line) == b"again"
        assert time.monotonic() - began >= 0.4, "there and back"
        proxy.mend("delay")
        proxy.apply("rate", 200_000.0)
        began = time.monotonic()
        line.sendall(bytes(40_000))
        assert len(answer(line, 40_000)) == 40_000
        assert time.monotonic() - began >= 0.2
    with pytest.raises(ValueError, match="cannot melt"):
        proxy.apply("melt")


def test_a_fault_of_the_network_strikes_one_group_or_all(proxy):
    network = Proxies()
    url = network.path("g0", f"http://{proxy.address}")
    scene = Scene(network)
    line = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10)
    line.sendall(b"hello")
    assert answer(line) == b"hello"
    scene.strike(target=Target.NETWORK, group="g1", action="cut", seconds=1.0)
    line.sendall(b"again")
    assert answer(line) == b"again"
    scene.strike(target=Target.NETWORK, action="drop", seconds=1.0)
    line.sendall(b"third")
    line.settimeout(0.2)
    with pytest.raises(TimeoutError):
        line.recv(1)
    scene.now = 1.0
    scene.hands.look()
    line.settimeout(10)
    assert answer(line) == b"third"
    line.close()
    network.close()


@pytest.fixture
def hosts():
    try:
        made = Hosts(["g0", "g1"])
    except ExitRequest as refusal:
        pytest.skip(refusal.reason)
    yield made
    made.close()


def test_hosts_are_cut_from_each_other_dropped_and_throttled(hosts):
    """Nothing is said to anybody: connections of a bad network hang, and the lighthouse's side still reaches them."""
    server = netns.inside(hosts.space("g1"), lambda: socket.create_server(("0.0.0.0", 0)))
    address = (hosts.address.removesuffix(".1") + ".3", server.getsockname()[1])

    def reaches(from_: str | None = "g0", limit_s: float = 5.0) -> bool:
        dial = functools.partial(socket.create_connection, address, timeout=limit_s)
        try:
            (netns.inside(hosts.space(from_), dial) if from_ else dial()).close()
        except TimeoutError:
            return False
        return True

    assert reaches()
    hosts.apply(None, "cut", 0.0)
    assert (reaches(limit_s=0.3), reaches(None)) == (False, True)
    hosts.mend(None, "cut")
    assert reaches()
    hosts.apply("g1", "drop", 0.0)
    assert (reaches(limit_s=0.3), reaches(None, limit_s=0.3)) == (False, False)
    hosts.mend("g1", "drop")
    assert reaches()
    hosts.apply("g1", "rate", 50_000.0)
    line = netns.inside(hosts.space("g0"), lambda: socket.create_connection(address, timeout=10))
    far = next(far for far, peer in iter(server.accept, None) if peer == line.getsockname())
    began = time.monotonic()
    line.sendall(bytes(200_000))
    assert len(answer(far, 200_000)) == 200_000
    assert time.monotonic() - began > 1.0, "200 kB, less the 64 kB that pass at once, at 50 kB/s"
    for each in (line, far, server):
        each.close()
