"""Hosts of one machine: a network namespace each, joined by a switch whose cables can be pulled in silence.

A pulled port keeps its carrier and answers nothing: packets are swallowed, as when a host or a path dies without a
word. Needs root; elsewhere the tests that use it skip.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from configs.dump import to_toml
from tests.support.field import LIMIT_S, Field
from tests.support.lighthouse import ROOT
from tests.support.rig import Rig, Run

SECRET = "off loopback a secret is required"
NIC = "nic0"


class Hosts:
    """Namespaces 10.77.0.1, .2, ... on one switch."""

    def __init__(self, *names: str) -> None:
        self._tag = uuid.uuid4().hex[:6]
        self._switch = f"sw-{self._tag}"
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        ip("netns", "add", self._switch)
        self._in_switch("ip", "link", "add", "sw", "type", "bridge")
        self._in_switch("ip", "link", "set", "sw", "up")
        for name, address in self.addresses.items():
            space = self.space(name)
            ip("netns", "add", space)
            ip("-n", space, "link", "add", NIC, "type", "veth", "peer", "name", name, "netns", self._switch)
            ip("-n", space, "addr", "add", f"{address}/24", "dev", NIC)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", NIC, "up")
            self._in_switch("ip", "link", "set", "dev", name, "master", "sw", "up")

    def space(self, name: str) -> str:
        return f"{name}-{self._tag}"

    def inside(self, name: str) -> list[str]:
        """The words before a command that is to run on this host."""
        return ["ip", "netns", "exec", self.space(name)]

    def silence(self, name: str, *, silent: bool = True) -> None:
        """Pull the host's cable, or put it back."""
        self._in_switch("ip", "link", "set", "dev", name, *(["nomaster"] if silent else ["master", "sw"]))

    def cut(self, *names: str, cut: bool = True) -> None:
        """Let these hosts reach all others and not each other, or again each other too."""
        for name in names:
            self._in_switch("bridge", "link", "set", "dev", name, "isolated", "on" if cut else "off")

    def close(self) -> None:
        for name in self.addresses:
            ip("netns", "del", self.space(name))
        ip("netns", "del", self._switch)

    def _in_switch(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._switch, *command], check=True, capture_output=True, text=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@functools.cache
def why_not() -> str:
    """Why there can be no hosts here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        hosts = Hosts("a", "b")
        hosts.cut("a", "b")
        hosts.close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces with a switch: {getattr(error, 'stderr', None) or error}"
    return ""


class FarField(Field):
    """A field whose lighthouse is on host ``lh`` and each group on a host of its own name."""

    def __init__(self, rig: Rig, name: str, *, groups: int = 2, **keys: object) -> None:
        self.hosts = Hosts("lh", *(f"g{i}" for i in range(groups)))
        self._rounds: dict[str, list[subprocess.Popen[bytes]]] = {}
        try:
            super().__init__(rig, name, groups=groups, fault_tolerance__interface=NIC, **keys)
        except BaseException:
            self.hosts.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.lighthouse.kill()
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.lighthouse.communicate()
        self.hosts.close()

    def light(self, folder: Path | None = None) -> None:
        bind = self.url.removeprefix("http://") or f"{self.hosts.addresses['lh']}:0"
        command = [*self.hosts.inside("lh"), sys.executable, "-m", "lighthouse", "--bind", bind]
        command += ["--state", str(self.folder.lighthouse_state), "--events", str(self.folder.event_log("lighthouse"))]
        self.lighthouse = subprocess.Popen(command, cwd=ROOT, env=_env(), stdout=subprocess.PIPE, text=True)
        assert self.lighthouse.stdout is not None
        self.url = self.lighthouse.stdout.readline().strip()
        assert self.url, "the lighthouse did not start"

    def start(self, *groups: str, points: Sequence[str] = (), **unused: object) -> None:
        del unused
        config = self._config(chaos__failpoints=points) if points else self.config
        for group in groups:
            file = self.folder.root / f"{group}.toml"
            file.write_text(to_toml(config))
            command = [*self.hosts.inside(group), sys.executable, "-m", "ops", "group", str(file)]
            log = (self.folder.root / f"{group}.log").open("ab")
            process = subprocess.Popen(
                [*command, "--group", group, "--lighthouse", self.url],
                cwd=ROOT,
                env=_env(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            log.close()
            self._rounds.setdefault(group, []).append(process)

    def exit_code(self, group: str, round_: int = 0) -> int:
        """Of the group's n-th start, once it has ended."""
        return self._rounds[group][round_].wait(LIMIT_S)

    def drain(self) -> Run:
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes():
            process.wait(LIMIT_S)
        return Run(0, "", self.folder, "")

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [process for processes in self._rounds.values() for process in processes]


def _env() -> dict[str, str]:
    return {**os.environ, "PHALANX_SECRET": SECRET}
