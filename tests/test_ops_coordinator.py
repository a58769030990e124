"""The launcher's lighthouse: started again when it dies, and again when its port is taken for a while."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from configs.run_folder import RunFolder
from configs.words import Exit, ExitRequest
from ops.launch import coordinator
from ops.launch.coordinator import Bindings, Coordinator

LIMIT_S = 60.0


@pytest.fixture
def told():
    return []


@pytest.fixture
def lighthouse(tmp_path, told):
    folder = RunFolder(tmp_path)
    folder.events.mkdir(parents=True)
    made = Coordinator(
        folder=folder, bindings=Bindings(), min_groups=1, sink=lambda event, **fields: told.append((event, fields))
    )
    yield made
    made.stop()


def news(lighthouse):
    """The next thing to say."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        text = lighthouse.keep()
        if text is not None:
            return text
        time.sleep(0.01)
    raise AssertionError("nothing was said")


def kill(told):
    pid = told[-1][1]["pids"][0]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def taken(url):
    """Somebody else listens on the address of a lighthouse that has died."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_server((host, int(port)))


def test_it_returns_on_the_same_addresses(lighthouse, told):
    lighthouse.start()
    gateway, page = lighthouse.gateway, lighthouse.page
    assert lighthouse.keep() is None
    kill(told)
    assert news(lighthouse) == "the lighthouse ended (killed by SIGKILL): starting it again"
    assert news(lighthouse) == f"the lighthouse is back at {gateway}"
    assert (lighthouse.gateway, lighthouse.page) == (gateway, page)
    assert [event for event, _ in told] == ["lighthouse", "lighthouse"]
    assert lighthouse.keep() is None


def test_one_that_falls_silent_is_ended_and_returns(lighthouse, told, monkeypatch):
    monkeypatch.setattr(coordinator, "SILENT_S", 4.0)
    lighthouse.start()
    deadline = time.monotonic() + 6.0
    while time.monotonic() < deadline:  # one that works is left alone
        assert lighthouse.keep() is None
        time.sleep(0.05)
    os.kill(told[-1][1]["pids"][0], signal.SIGSTOP)
    assert news(lighthouse) == "the lighthouse has been silent for 4 s: ending it"
    assert news(lighthouse) == "the lighthouse ended (killed by SIGKILL): starting it again"
    assert news(lighthouse) == f"the lighthouse is back at {lighthouse.gateway}"


def test_one_whose_loop_hangs_tells_where(lighthouse, told, monkeypatch, tmp_path):
    monkeypatch.setattr(coordinator, "SILENT_S", 4.0)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio, time\n"
        "import lighthouse.server as server\n"
        "async def hang(self):\n"
        "    await asyncio.sleep(0.5)\n"
        "    time.sleep(60)\n"
        "server.Lighthouse.serve = hang\n"
    )
    lighthouse.start()
    assert news(lighthouse) == "the lighthouse has been silent for 4 s: ending it"
    assert news(lighthouse) == "the lighthouse ended (killed by SIGABRT): starting it again"
    assert "in hang" in (tmp_path / "logs" / "lighthouse.log").read_text()


def test_a_launcher_that_slept_itself_ends_nobody(lighthouse, told, monkeypatch):
    monkeypatch.setattr(coordinator, "SILENT_S", 1.5)
    monkeypatch.setattr(coordinator, "LATE_S", 0.5)
    lighthouse.start()
    os.kill(told[-1][1]["pids"][0], signal.SIGSTOP)
    assert lighthouse.keep() is None
    time.sleep(2.0)  # both stood still
    os.kill(told[-1][1]["pids"][0], signal.SIGCONT)
    assert lighthouse.keep() is None


def test_a_port_that_is_taken_for_a_while_is_waited_for(lighthouse, told):
    lighthouse.start()
    kill(told)
    with taken(lighthouse.gateway):
        news(lighthouse)
        said = news(lighthouse)
        assert said.startswith("the lighthouse did not start: cannot listen on "), said
        assert said.endswith("; trying again"), said
    assert news(lighthouse) == f"the lighthouse is back at {lighthouse.gateway}"


def test_one_that_cannot_return_ends_the_run_with_its_reason(lighthouse, told, monkeypatch):
    lighthouse.start()
    kill(told)
    monkeypatch.setattr(coordinator, "START_LIMIT_S", 0.0)
    with taken(lighthouse.gateway):
        news(lighthouse)
        with pytest.raises(ExitRequest, match="cannot be started again") as caught:
            news(lighthouse)
    assert caught.value.code == Exit.QUORUM_LOST


def test_a_port_that_is_taken_at_the_first_start_is_the_users(lighthouse, tmp_path, told):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        folder = RunFolder(tmp_path)
        second = Coordinator(
            folder=folder, bindings=Bindings(gateway=address), min_groups=1, sink=lambda event, **fields: None
        )
        with pytest.raises(ExitRequest, match=f"cannot listen on {address}") as caught:
            second.start()
        assert caught.value.code == Exit.BAD_CONFIG


def test_it_can_be_struck_as_a_fault_and_not_while_it_is_away(lighthouse, told):
    assert not lighthouse.signal(signal.SIGKILL), "there is none yet"
    lighthouse.start()
    assert lighthouse.signal(0)
    assert lighthouse.signal(signal.SIGKILL)
    os.waitid(os.P_PID, told[-1][1]["pids"][0], os.WEXITED | os.WNOWAIT)
    assert "killed by SIGKILL" in news(lighthouse)
    assert not lighthouse.signal(signal.SIGKILL), "the next one does not listen yet"
    assert "is back" in news(lighthouse)
    assert lighthouse.signal(0)
