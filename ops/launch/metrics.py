"""What does the launcher count? Restarts, recoveries and notices, on a /metrics of its own.

Names and labels are the contract's. The registry is the launcher's alone; counts are since this launcher started.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from configs.tls import Tls

RECOVERY_BUCKETS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)


class LauncherMetrics:
    """Thread-safe."""

    def __init__(self, *, run: str) -> None:
        self._run = run
        self._registry = CollectorRegistry()
        self._restarts = Counter(
            "phalanx_group_restarts", "Restarts of a group", ("run", "group", "reason"), registry=self._registry
        )
        self._recovery = Histogram(
            "phalanx_group_recovery_seconds",
            "From a group's death to its successor's first commit with a share of its own",
            ("run",),
            buckets=RECOVERY_BUCKETS,
            registry=self._registry,
        )
        self._notices = Counter(
            "phalanx_preemption_notices", "Requests to leave", ("run", "source"), registry=self._registry
        )

    def serve(self, *, tls: Tls | None) -> str:
        """Serve /metrics on a free loopback port. Returns its URL."""
        if tls is None:
            server, _ = start_http_server(0, "127.0.0.1", registry=self._registry)
            return f"http://127.0.0.1:{server.server_port}"
        server, _ = start_http_server(
            0,
            "127.0.0.1",
            registry=self._registry,
            certfile=str(tls.certificate),
            keyfile=str(tls.key),
            client_cafile=str(tls.ca),
            client_auth_required=tls.mutual,
        )
        return f"https://127.0.0.1:{server.server_port}"

    def restarted(self, group: str, reason: str, recovery_s: float | None) -> None:
        """A restart, and how long the group was away; None when it never came back."""
        self._restarts.labels(self._run, group, reason).inc()
        if recovery_s is not None:
            self._recovery.labels(self._run).observe(recovery_s)

    def noticed(self, source: str) -> None:
        """A request to leave."""
        self._notices.labels(self._run, source).inc()
