"""The networks of a run that can be made bad: proxies before the lighthouse, or a host of its own for every group.

``Proxies`` need nothing and touch only the paths between groups and lighthouse. ``Hosts`` are network namespaces on one
switch, with the lighthouse on this side of it; everything that groups say to each other goes over it, so their cables
can be pulled in silence, slowed and throttled. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from configs.words import Exit, ExitRequest
from ops.chaos.proxy import FaultProxy

NIC = "phx0"
"""The interface of every group's host."""


class Network(Protocol):
    """What carries a fault of the network out. ``group`` None: of all groups."""

    def path(self, group: str, url: str) -> str: ...

    def apply(self, group: str | None, fault: str, amount: float) -> None: ...

    def mend(self, group: str | None, fault: str) -> None: ...

    def close(self) -> None: ...


class Proxies:
    """A proxy between each group and the lighthouse."""

    def __init__(self) -> None:
        self._proxies: dict[str, FaultProxy] = {}

    def path(self, group: str, url: str) -> str:
        """The lighthouse at ``url`` as this group sees it."""
        scheme, _, address = url.rpartition("://")
        self._proxies[group] = FaultProxy(address)
        return f"{scheme}://{self._proxies[group].address}"

    def apply(self, group: str | None, fault: str, amount: float) -> None:
        for proxy in self._of(group):
            proxy.apply(fault, amount)

    def mend(self, group: str | None, fault: str) -> None:
        for proxy in self._of(group):
            proxy.mend(fault)

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()

    def _of(self, group: str | None) -> list[FaultProxy]:
        return [proxy for name, proxy in self._proxies.items() if group in (None, name)]


class Hosts:
    """A namespace for each group, and a switch."""

    def __init__(self, groups: Sequence[str], *, faults: Collection[str] = ()) -> None:
        """Raises ExitRequest(2) where namespaces cannot be made, or not all of the ``faults``."""
        self._tag = uuid.uuid4().hex[:6]
        self._net = f"10.77.{int(self._tag, 16) % 254 + 1}"
        self._groups = tuple(groups)
        self._bad: dict[str, dict[str, float]] = {group: {} for group in groups}
        self._made: list[tuple[str, ...]] = []
        self.address = f"{self._net}.1"
        """Of the lighthouse."""
        try:
            self._build()
            if "delay" in faults:
                _run("tc", "qdisc", "add", "dev", self._port(self._groups[0]), "root", *_discipline({"delay": 0.001}))
                self._shape(self._groups[0])
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = getattr(error, "stderr", None) or error
            raise ExitRequest(Exit.BAD_CONFIG, f"network namespaces need root and iproute2: {said}") from error

    def space(self, group: str) -> str:
        """The namespace's name."""
        return f"{group}-{self._tag}"

    def path(self, group: str, url: str) -> str:
        """The lighthouse is where it is: over the switch."""
        del group
        return url

    def apply(self, group: str | None, fault: str, amount: float) -> None:
        """cut: from the other groups (with two, or of all of them); drop: the cable is pulled, in silence; delay in
        seconds and rate in bytes per second, on the way to the group."""
        for each in self._of(group):
            self._bad[each][fault] = amount
            self._shape(each)

    def mend(self, group: str | None, fault: str) -> None:
        for each in self._of(group):
            self._bad[each].pop(fault, None)
            self._shape(each)

    def close(self) -> None:
        for undo in reversed(self._made):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _run(*undo)
        self._made = []

    def _build(self) -> None:
        if os.geteuid():
            raise OSError("not root")
        switch = f"phs{self._tag}"
        self._add(("ip", "link", "add", switch, "type", "bridge"), ("ip", "link", "del", switch))
        _run("ip", "addr", "add", f"{self.address}/24", "dev", switch)
        _run("ip", "link", "set", switch, "up")
        for number, group in enumerate(self._groups, 2):
            space = self.space(group)
            self._add(("ip", "netns", "add", space), ("ip", "netns", "del", space))
            _run("ip", "-n", space, "link", "add", NIC, "type", "veth", "peer", "name", self._port(group), "netns", "1")
            _run("ip", "-n", space, "addr", "add", f"{self._net}.{number}/24", "dev", NIC)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "link", "set", NIC, "up")
            _run("ip", "link", "set", self._port(group), "master", switch, "up")

    def _add(self, make: tuple[str, ...], undo: tuple[str, ...]) -> None:
        _run(*make)
        self._made.append(undo)

    def _port(self, group: str) -> str:
        """The switch's end of a group's cable."""
        return f"{group}p{self._tag}"

    def _of(self, group: str | None) -> tuple[str, ...]:
        return self._groups if group is None else (group,)

    def _shape(self, group: str) -> None:
        """Make a cable what is wrong with it."""
        bad, port = self._bad[group], self._port(group)
        _run("ip", "link", "set", "dev", port, *(["nomaster"] if "drop" in bad else ["master", f"phs{self._tag}"]))
        if "drop" not in bad:
            _run("bridge", "link", "set", "dev", port, "isolated", "on" if "cut" in bad else "off")
        with contextlib.suppress(subprocess.CalledProcessError):  # there is none yet
            _run("tc", "qdisc", "del", "dev", port, "root")
        if how := _discipline(bad):
            _run("tc", "qdisc", "add", "dev", port, "root", *how)


def _discipline(bad: Mapping[str, float]) -> list[str]:
    """What ``tc`` does with a cable's packets. A kernel may lack netem, which delays; tbf, for a rate, is common."""
    rate = f"{bad['rate'] * 8:.0f}bit" if "rate" in bad else ""
    if "delay" in bad:
        return ["netem", "limit", "100000", "delay", f"{bad['delay']:g}s", *(["rate", rate] if rate else [])]
    return ["tbf", "rate", rate, "burst", "64k", "latency", "1s"] if rate else []


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
