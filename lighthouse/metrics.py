"""What does the lighthouse count? Its Prometheus metrics, in a registry of their own, labelled with the run.

A series is absent until its first value is known. Called by the gateway; served by http.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_WAITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The lighthouse's metrics; names are part of the contract with dashboards."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.run = ""
        run, registry = ["run"], self.registry
        self._quorum_id = Gauge(
            "phalanx_quorum_id", "Running number, within the epoch, of the last quorum's id", run, registry=registry
        )
        self._epoch = Gauge("phalanx_lighthouse_epoch", "Epoch of this lighthouse", run, registry=registry)
        self._participants = Gauge(
            "phalanx_quorum_participants", "Participants of the last quorum", run, registry=registry
        )
        self._changes = Counter("phalanx_quorum_changes", "Quorums with other members", run, registry=registry)
        self._wait = Histogram(
            "phalanx_quorum_wait_seconds",
            "From a group's request to its grant",
            run,
            registry=registry,
            buckets=_WAITS_S,
        )
        self._alive = Gauge("phalanx_groups_alive", "Groups with an open stream", run, registry=registry)
        self._departures = Counter(
            "phalanx_group_departures", "Incarnations that have gone", ["run", "cause"], registry=registry
        )
        self._age = Gauge(
            "phalanx_heartbeat_age_seconds", "Since a group was last heard", ["run", "group"], registry=registry
        )

    def granted(self, *, running: int, participants: int, changed: bool) -> None:
        self._quorum_id.labels(self.run).set(running)
        self._participants.labels(self.run).set(participants)
        self._changes.labels(self.run).inc(int(changed))

    def waited(self, seconds: float) -> None:
        self._wait.labels(self.run).observe(seconds)

    def departed(self, cause: str) -> None:
        self._departures.labels(self.run, cause).inc()

    def render(self, *, epoch: int, ages: Mapping[str, float]) -> bytes:
        """The text exposition. ``ages``: seconds since each living group was heard."""
        if not self.run:  # nobody has joined: a series of a run without a name would stay for ever
            return generate_latest(self.registry)
        self._epoch.labels(self.run).set(epoch)
        self._alive.labels(self.run).set(len(ages))
        self._age.clear()
        for group, seconds in ages.items():
            self._age.labels(self.run, group).set(seconds)
        return generate_latest(self.registry)
