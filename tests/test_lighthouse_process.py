"""The lighthouse as a process: its addresses, its secret, its end."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from configs.protocol import Refused, Unreachable
from lighthouse.client import Control
from tests.support.lighthouse import ROOT, start_process, terms, wait_until


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(processes, folder, *flags, **more):
    process, url = start_process(folder, *flags, **more)
    processes.append(process)
    return process, url


def test_it_prints_and_writes_its_address_and_stops_on_sigterm(tmp_path, processes):
    process, url = start(processes, tmp_path, "--address-file", str(tmp_path / "address"))
    assert url.startswith("http://127.0.0.1:")
    assert (tmp_path / "address").read_text().split()[0] == url
    control = Control(url)
    assert control.join(terms(), group="g0").incarnation == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    with pytest.raises(Unreachable):
        control.status()
    control.close()


def test_it_does_not_import_torch():
    code = "import sys, lighthouse.__main__; from lighthouse.engine import load_torchft; load_torchft(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("flag", ["--bind", "--http"])
def test_a_port_in_use_is_exit_2_and_named(tmp_path, processes, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process, url = start(processes, tmp_path, flag, address)
        assert url is None
        assert process.wait(30) == 2
        message = process.stderr.read()
    assert address in message
    assert "in use" in message


def test_the_port_of_another_lighthouse_is_in_use_too(tmp_path, processes):
    _, url = start(processes, tmp_path / "one")
    process, second = start(processes, tmp_path / "two", bind=url.removeprefix("http://"))
    assert second is None
    assert process.wait(30) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bind", "0.0.0.0:0"], "set PHALANX_SECRET"),
        (["--http", "0.0.0.0:0"], "set PHALANX_SECRET"),
        (["--bind", "nonsense"], "expected HOST:PORT"),
        (["--min-groups", "0"], "--min-groups 0: expected a number >= 1"),
        (["--events", "/"], "--events / cannot be used: Is a directory"),
        (["--state", "/proc/none/state"], "--state /proc/none/state cannot be used: No such file"),
    ],
)
def test_unsafe_and_senseless_addresses_are_exit_2(tmp_path, processes, flags, message):
    process, _ = start(processes, tmp_path, *flags)
    assert process.wait(30) == 2
    assert message in process.stderr.read()


def test_a_damaged_state_file_is_exit_2(tmp_path, processes):
    (tmp_path / "lighthouse.state").write_text("nonsense\n")
    process, _ = start(processes, tmp_path)
    assert process.wait(30) == 2
    assert "lighthouse.state" in process.stderr.read()


def test_the_secret_is_asked_of_everybody(tmp_path, processes, monkeypatch):
    monkeypatch.setenv("PHALANX_SECRET", "open sesame")
    _, url = start(processes, tmp_path)
    good, bad, none = Control(url), Control(url, secret="open barley"), Control(url, secret="")
    assert good.join(terms(), group="g0").incarnation == 1
    for control in (bad, none):
        with pytest.raises(Refused, match="secret"):
            control.join(terms(), group="g0")
    broken = []
    watch = bad.watch("g0", 1, lambda notice: pytest.fail("told a stranger"), broken.append)
    wait_until(lambda: broken)
    assert "secret" in broken[0]
    watch.close()
    for control in (good, bad, none):
        control.close()


def test_it_dies_with_its_parent(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'lighthouse', '--die-with-parent'],"
        " stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not _runs(pid))


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_killed_lighthouse_is_noticed_and_its_successor_takes_over(tmp_path, processes):
    first, url = start(processes, tmp_path)
    control = Control(url)
    seated = control.join(terms(), group="g0", life="one")
    told, broken = [], []
    watch = control.watch("g0", seated.incarnation, told.append, broken.append)
    wait_until(lambda: told)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: broken)
    start(processes, tmp_path, bind=url.removeprefix("http://"))
    wait_until(lambda: told[-1].epoch > seated.epoch)
    assert told[-1].buried is None
    assert control.join(terms(), group="g0", life="one").incarnation == 1
    watch.close()
    control.close()
