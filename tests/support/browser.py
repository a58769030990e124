"""A headless Chromium for tests of the live page: Debian's own browser and driver, nothing downloaded."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
LIMIT_S = 60.0  # for what must happen; nothing is asserted about how long it takes
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
    "about:blank",  # the start page of its own would want the network
)
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason="Debian's chromium and chromium-driver are not installed"
)


class Browser:
    """One window that notes what it asks of the network and what it says to its console."""

    def __init__(self, profile: Path) -> None:
        options = Options()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        self.errors: list[str] = []
        self.hosts: set[str] = set()

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        found = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.run(found, selector))  # type: ignore[call-overload]

    def until(self, script: str, *arguments: object) -> object:
        """Wait until the page says something true."""
        end = time.monotonic() + LIMIT_S
        while not (found := self.run(f"return {script}", *arguments)):
            assert time.monotonic() < end, f"not seen: {script}; {self.run('return document.body.innerText')}"
            time.sleep(0.05)
        return found

    def show(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Another screen, another preference."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.until("innerWidth === arguments[0]", width)

    def look(self) -> None:
        """Take in what was noted since the last look."""
        self.errors += [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                if url.scheme in ("http", "https", "ws", "wss"):  # no other leaves the browser
                    self.hosts.add(url.netloc)


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    found = Browser(profile)
    try:
        yield found
    finally:
        found.driver.quit()
