"""Lighthouses and toy groups for tests: real gRPC, torchft's real manager server and client, no training."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path

from configs.protocol import Claim, Terms
from configs.run_folder import read_events
from configs.words import SCRATCH, Lineage
from lighthouse.client import Control
from lighthouse.engine import load_torchft
from lighthouse.server import Lighthouse, Settings

LIMIT_S = 60.0  # for what must happen; nothing is asserted about how long it takes
ROOT = Path(__file__).resolve().parents[2]
MANAGER = str(ROOT / "tests/support/torchft_manager.py")
torchft = load_torchft()


def terms(**changes):
    usual = {
        "run": "test",
        "config_digest": "digest",
        "groups": 2,
        "min_groups": 1,
        "start_wait_s": 60.0,
        "failure_detection_s": 2.0,
        "steps": 100,
    }
    return Terms(**{**usual, **changes})


class InThread:
    """A lighthouse in this process, on an event loop of its own."""

    def __init__(self, folder, **settings):
        self.settings = Settings(state=folder / "lighthouse.state", events=folder / "lighthouse.jsonl", **settings)
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._up.wait(LIMIT_S)

    async def _serve(self):
        self.lighthouse = Lighthouse(self.settings)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.lighthouse.start()
        self.url, self.http_url = self.lighthouse.url, self.lighthouse.http_url
        serving = asyncio.create_task(self.lighthouse.serve())
        self._up.set()
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await self.lighthouse.stop()

    def call(self, function):
        """Call something on the lighthouse's event loop."""

        async def called():
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(LIMIT_S)

    def events(self, *names):
        return [event for event in read_events(self.settings.events) if not names or event["event"] in names]

    def stop(self):
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def start_process(folder, *flags, bind="127.0.0.1:0"):
    """A lighthouse process. Returns (process, URL); the URL is None when it ended instead."""
    command = [sys.executable, "-m", "lighthouse", "--bind", bind, "--die-with-parent"]
    command += ["--state", str(folder / "lighthouse.state"), "--events", str(folder / "lighthouse.jsonl"), *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip() or None


def in_thread(call, *arguments, **more):
    """The future of a call on a daemon thread: torchft's calls that fail wait for their whole time limit."""
    future = Future()

    def run():
        try:
            future.set_result(call(*arguments, **more))
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Toy:
    """A group of one rank that speaks both protocols."""

    def __init__(self, url, name, *, life="", watch=True, **changes):
        self.name, self.control, self.life = name, Control(url), life
        self.seated = self.control.join(terms(**changes), group=name, life=life, config="[job]")
        self.incarnation = self.seated.incarnation
        self.breaks, self._notice, self._told, self._calls = [], None, threading.Condition(), []
        self._manager = subprocess.Popen(
            [sys.executable, MANAGER, torchft.__file__, f"{name}:{self.incarnation}", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._client = None
        self.watch = self.control.watch(name, self.incarnation, self._on_notice, self.breaks.append) if watch else None

    def _on_notice(self, notice):
        with self._told:
            self._notice = notice
            self._told.notify_all()

    def watches(self):
        """Whether there is still something for it to hear."""
        return self._notice is None or (self._notice.buried is None and self._notice.ended is None)

    def wait_notice(self, wanted):
        """The first notice, from now on or the present one, of which ``wanted`` is true."""
        with self._told:
            assert self._told.wait_for(lambda: self._notice is not None and wanted(self._notice), LIMIT_S), self._notice
            return self._notice

    def begin(self, lineage=SCRATCH, *, void=False, **claim):
        """Ask; returns (future of the Grant, future of torchft's answer, which is late when the first is an error)."""
        if self._client is None:
            address = f"http://127.0.0.1:{self._manager.stdout.readline().strip()}"
            self._client = torchft.ManagerClient(address, connect_timeout=timedelta(seconds=LIMIT_S))
        quorum = in_thread(
            self._client._quorum,
            group_rank=0,
            step=lineage.step,
            checkpoint_metadata="",
            shrink_only=False,
            init_sync=False,
            commit_failures=0,
            timeout=timedelta(seconds=LIMIT_S),
        )
        own = Claim(group=self.name, incarnation=self.incarnation, lineage=Lineage(*lineage), void=void, **claim)
        self._calls += [quorum, ask := in_thread(self.control.ask, own)]
        return ask, quorum

    def ask(self, lineage=SCRATCH, *, void=False, **claim):
        return finish(self.begin(lineage, void=void, **claim))

    def close(self):
        """Gone: to the lighthouse this is a death, unless it has left or the run ended."""
        if self.watch is not None:
            self.watch.close()
        self.control.close()
        self._manager.kill()
        self._manager.communicate()
        wait(self._calls, LIMIT_S)  # a thread that is inside torchft when the interpreter ends aborts it


def finish(asked):
    """The grant, once torchft's answer has been checked against it."""
    grant, quorum = asked[0].result(LIMIT_S), asked[1].result(LIMIT_S)
    assert quorum.quorum_id == grant.quorum_id
    assert list(quorum.replica_ids) == [member.replica_id for member in grant.members]
    return grant


def ask_all(*claims):
    """Several toys ask for one quorum: ``(toy, lineage, void)`` each, further claims as a dict. Returns their grants.

    One after the other, newcomers first: what is complete without them would not wait.
    """
    asked = {}
    for toy, lineage, void, *more in sorted(claims, key=lambda claim: not claim[2]):
        asked[toy] = toy.begin(lineage, void=void, **dict(*more))
        if len(asked) < len(claims):
            wait_asked(toy)
    return [finish(asked[toy]) for toy, *_ in claims]


def wait_asked(toy):
    """Until the toy's request, with all that belongs to it, is at the lighthouse."""
    wait_until(lambda: any(g["complete"] for g in toy.control.status()["groups"] if g["group"] == toy.name))


def committed(grant):
    """The lineage of the commit that an attempt makes."""
    return Lineage(grant.current.step + 1, grant.quorum_id)


def wait_until(condition):
    """For what is seen only by looking: files and processes of others."""
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


class Stage:
    """A lighthouse and its toys, all gone at the end of a test."""

    def __init__(self, folder):
        self.folder, self.toys, self.processes = folder, [], []
        self.lighthouse = InThread(folder)

    def toy(self, name, **more):
        self.toys.append(Toy(self.lighthouse.url, name, **more))
        return self.toys[-1]

    def toy_process(self, name, life):
        command = [sys.executable, "-m", "tests.support.lighthouse", self.lighthouse.url, name, life]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        process.stdout.readline()
        return process

    def restart(self):
        """A new lighthouse takes the place and the address of the last, and all toys that still watch have come."""
        bind = self.lighthouse.url.removeprefix("http://")
        self.lighthouse.stop()
        self.lighthouse = InThread(self.folder, bind=bind)
        for toy in self.toys:
            if toy.watches():
                toy.wait_notice(lambda notice, epoch=toy.seated.epoch: notice.epoch > epoch)

    def events(self, *names):
        return self.lighthouse.events(*names)

    def close(self):
        for toy in self.toys:
            toy.close()
        for process in self.processes:
            process.kill()
            process.communicate()
        self.lighthouse.stop()


def started(stage, **changes):
    """Two toys and their first grant, both up to date from the seed."""
    g0, g1 = stage.toy("g0", **changes), stage.toy("g1", **changes)
    first, other = ask_all((g0, SCRATCH, True), (g1, SCRATCH, True))
    assert first == other
    return g0, g1, first


def main():
    """A toy group as a process of its own: asks once from scratch, then waits to be killed. URL NAME LIFE."""
    toy = Toy(sys.argv[1], sys.argv[2], life=sys.argv[3])
    print(os.getpid(), flush=True)
    grant = toy.ask(void=True)
    print(grant.attempt, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
