"""Where can the parts of a running job be reached? Kept true in ``events/endpoints.json``.

The lead of each incarnation names its address in the ``endpoint`` of its ``start`` event; the entry goes when the
incarnation does. Prometheus finds the same targets in ``events/prometheus_sd.json`` (file-based service discovery).
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from configs.run_folder import Event, RunFolder, write_atomically

SD_FILE = "prometheus_sd.json"


class Endpoints:
    """The two files. One writer: the launcher's main thread."""

    def __init__(self, folder: RunFolder, *, run: str) -> None:
        self._folder = folder
        self._run = run
        self._urls: dict[str, str] = {}

    def set(self, name: str, url: str | None) -> None:
        """Name an address; None or an empty text takes it away."""
        if (url or None) == self._urls.get(name):
            return
        if url:
            self._urls[name] = url
        else:
            del self._urls[name]
        self.write()

    def take(self, writer: str, event: Event) -> None:
        """Follow the event logs: a group's ``start`` names its address, the launcher's ``exit`` ends it."""
        if event.get("event") == "start" and isinstance(event.get("endpoint"), dict):
            self.set(writer, event["endpoint"].get("metrics"))
        elif writer == "launcher" and event.get("event") == "exit" and event.get("group"):
            self.set(str(event["group"]), None)

    def clear(self) -> None:
        """Nothing can be reached any more."""
        self._urls.clear()
        self.write()

    def write(self) -> None:
        """Write both files, each atomically."""
        write_atomically(self._folder.endpoints, json.dumps(self._urls, indent=2) + "\n")
        targets = [self._target(name, url) for name, url in self._urls.items() if name != "gateway"]
        write_atomically(self._folder.events / SD_FILE, json.dumps(targets, indent=2) + "\n")

    def _target(self, name: str, url: str) -> dict[str, object]:
        labels = {"run": self._run}
        if name not in ("lighthouse", "launcher"):
            labels["group"] = name
        return {"targets": [urlsplit(url).netloc], "labels": labels}
