"""Where can the parts of a running job be reached? Kept true in ``events/endpoints.json``.

The lead of each incarnation names its address in the ``endpoint`` of its ``start`` event; the entry goes when the
incarnation does. Prometheus finds the same targets in ``events/prometheus_sd.json`` (file-based service discovery).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from urllib.parse import urlsplit

from configs.run_folder import Event, RunFolder, write_atomically

SD_FILE = "prometheus_sd.json"


class Endpoints:
    """This launcher's entries in the two files, which launchers that joined the same run write too."""

    def __init__(
        self, folder: RunFolder, *, run: str, joins: bool = False, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """A launcher that joins another's run leaves what is there; the first one begins anew. ``say`` is told, once,
        that the files cannot be written: a full disk ends no run."""
        self._say = say
        self._told = False
        self._folder = folder
        self._run = run
        self._urls: dict[str, str] = {}
        self._named: set[str] = set()
        """Entries of ours that are in the file."""
        self._fresh = not joins

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
        """What this launcher named can be reached no more."""
        self._urls.clear()
        self.write()

    def write(self) -> None:
        """Bring both files up to date, each atomically; the entries of others stay."""
        try:
            self._write()
            self._told = False
        except OSError as error:
            if not self._told:
                self._say(f"warning: {self._folder.endpoints} cannot be kept true: {error.strerror}")
            self._told = True

    def _write(self) -> None:
        self._folder.events.mkdir(parents=True, exist_ok=True)
        with (self._folder.events / ".endpoints.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = {name: url for name, url in self._there().items() if name not in self._named}
            urls = others | self._urls
            self._named = set(self._urls)
            write_atomically(self._folder.endpoints, json.dumps(urls, indent=2) + "\n")
            targets = [self._target(name, url) for name, url in urls.items() if name != "gateway"]
            write_atomically(self._folder.events / SD_FILE, json.dumps(targets, indent=2) + "\n")

    def _there(self) -> dict[str, str]:
        """What the file says now; one that is no such file is as good as none."""
        if self._fresh:
            self._fresh = False
            return {}
        try:
            found = json.loads(self._folder.endpoints.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _target(self, name: str, url: str) -> dict[str, object]:
        labels = {"run": self._run}
        if name != "lighthouse" and not name.startswith("launcher"):
            labels["group"] = name
        where = urlsplit(url)
        if where.scheme == "https":
            labels["__scheme__"] = where.scheme
        return {"targets": [where.netloc], "labels": labels}
