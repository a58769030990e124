"""What does a group tell Prometheus? Exactly what its event log says, and a few readings of the moment.

Every counter is fed from events, so the log and the metrics cannot differ, and a successor starts from its group's log:
counters go on across incarnations. The registry is the group's own. What is not known is absent, not zero.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from configs.run_folder import Event
from configs.tls import Tls

_PATIENCE_S = 10.0
_STEP_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)


class GroupMetrics:
    """The metrics of one group."""

    def __init__(self, *, run: str, group: str) -> None:
        self.registry = CollectorRegistry()
        self._names = {"run": run, "group": group}
        self._group = group
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._step_seconds = Histogram(
            "phalanx_step_seconds",
            "Seconds from the start of an attempt to its commit.",
            ["run", "group"],
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self._handlers: dict[str, Callable[[Event], None]] = {
            "commit": self._commit,
            "discard": self._discard,
            "heal": self._heal,
            "orphaned": lambda _: self._count("orphaned_total", "Commits that were never confirmed."),
            "checkpoint": self._checkpoint,
            "divergence": lambda _: self._count("divergences_total", "Groups of one lineage whose checksums differed."),
        }

    def replay(self, events: Iterable[Event]) -> None:
        """Take over the counters of this group's earlier incarnations."""
        for event in events:
            with contextlib.suppress(
                KeyError, TypeError, ValueError, AttributeError
            ):  # a damaged record counts nothing
                self.observe(event)

    def observe(self, event: Event) -> None:
        """Take in one event of this group's log."""
        handler = self._handlers.get(event["event"])
        if handler is not None:
            handler(event)

    def _commit(self, event: Event) -> None:
        self._count("commits_total", "Committed steps.", outcome=event["outcome"])
        self._set("step", "Committed steps of the current history.", event["step"])
        self._count("tokens_total", "Committed tokens of whole steps; the same in every group.", by=event["tokens"])
        whole = sum(len(share) for share in event["shares"].values())
        if whole:
            mine = len(event["shares"].get(self._group, ())) / whole * event["tokens"]
            self._count("group_tokens_total", "Committed tokens that this group computed.", by=mine)
        seconds = event["seconds"]
        self._step_seconds.labels(**self._names).observe(seconds)
        if seconds > 0:
            rate = event["tokens"] / seconds
            self._set("tokens_per_second", "Tokens of the last step over its seconds, all groups together.", rate)
        for name, key, text in (
            ("loss", "loss", "Loss of the last step, the mean over its tokens."),
            ("grad_norm", "grad_norm", "Gradient norm of the last step before clipping."),
            ("learning_rate", "lr", "Learning rate of the last step."),
        ):
            if event.get(key) is not None:
                self._set(name, text, event[key])
        if event.get("join_stall_s") is not None:
            text = "Seconds for which this group waited for the heals of others."
            self._count("join_stall_seconds_total", text, by=event["join_stall_s"])
        self._set("last_commit_timestamp_seconds", "When the last step was committed, unix time.", event["t"])
        self._phases(event)

    def _discard(self, event: Event) -> None:
        self._count("discards_total", "Attempts that moved nothing.", reason=event["reason"])
        self._phases(event)

    def _heal(self, event: Event) -> None:
        self._count("heals_total", "Times this group took its state from peers.")
        self._count("heal_bytes_total", "Bytes that this group took from peers.", by=event["bytes"])
        self._count("heal_seconds_total", "Seconds of healing.", by=event["seconds"])

    def _checkpoint(self, event: Event) -> None:
        self._count("checkpoints_total", "Turns at saving a checkpoint.", status=event["status"])
        for name, key, text in (
            ("checkpoint_seconds_total", "seconds", "Seconds of saving, in the background."),
            ("checkpoint_stall_seconds_total", "stall_seconds", "Seconds for which training waited for saving."),
        ):
            if event.get(key) is not None:
                self._count(name, text, by=event[key])
        if event.get("free_bytes") is not None:
            self._set("checkpoint_free_bytes", "Bytes free where the checkpoints lie.", event["free_bytes"])
        if event["status"] == "saved":
            self._set("checkpoint_last_step", "Step of the newest published checkpoint.", event["step"])

    def _phases(self, event: Event) -> None:
        for phase, seconds in event.get("phases", {}).items():
            self._count("phase_seconds_total", "Where the time of rank 0 goes.", by=seconds, phase=phase)

    def _count(self, name: str, text: str, *, by: float = 1, **labels: str) -> None:
        if name not in self._counters:
            names = [*self._names, *labels]
            self._counters[name] = Counter(f"phalanx_{name}", text, names, registry=self.registry)
        self._counters[name].labels(**self._names, **labels).inc(by)

    def _set(self, name: str, text: str, value: float, **labels: str) -> None:
        if name not in self._gauges:
            names = [*self._names, *labels]
            self._gauges[name] = Gauge(f"phalanx_{name}", text, names, registry=self.registry)
        self._gauges[name].labels(**self._names, **labels).set(value)


def serve(
    registry: CollectorRegistry, *, host: str, port: int, warn: Callable[[str], None], tls: Tls | None = None
) -> str:
    """Serve ``/metrics`` and ``/healthz`` on a thread; the URL. A taken port is a warning, and a free one is used."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
            elif self.path == "/healthz":
                self._answer(200, b"ok\n", "text/plain; charset=utf-8")
            else:
                self._answer(404, b"there are /metrics and /healthz\n", "text/plain; charset=utf-8")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            del format, args

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        warn(f"metrics port {port} cannot be used ({error.strerror}); using a free one")
        server = ThreadingHTTPServer((host, 0), Handler)
    if tls is not None:  # the handshake is the handler's thread's, so that nobody keeps others waiting
        server.socket = tls.server().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{'http' if tls is None else 'https'}://{host}:{server.server_address[1]}"
