"""Joins and drains of whole runs: a join has its price, drains go one at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from configs.run_folder import RunFolder, read_events
from configs.words import Exit
from tests.support.rig import holds

LIMIT_S = 120.0


def on_commit(folder, group, step, act):
    """Call ``act(pids of the group's ranks)`` once it has committed ``step``."""

    def follow():
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            events = list(read_events(folder.event_log(group)))
            if any(e["event"] == "commit" and e["step"] >= step for e in events):
                act(next(e["pids"] for e in events if e["event"] == "start"))
                return
            time.sleep(0.01)

    threading.Thread(target=follow, daemon=True).start()


def test_two_groups_told_to_drain_at_once_leave_one_after_the_other(rig):
    config = rig.config("drains", groups=3, ranks=1, steps=60)
    folder = RunFolder(Path(config.job.dump_folder))

    def drain(pids):
        for pid in (*pids, *next(e["pids"] for e in read_events(folder.event_log("g2")) if e["event"] == "start")):
            os.kill(pid, signal.SIGTERM)

    on_commit(folder, "g1", 8, drain)
    run = rig.run_config(config)
    assert run.code == Exit.DONE, run.said
    released = [e for e in run.events("lighthouse", "quorum") if e.get("released")]
    # Two signals in one breath: which group's word comes first is the machine's choice.
    assert sorted(e["released"] for e in released) == ["g1", "g2"], released
    assert released[0]["attempt"] < released[1]["attempt"]
    for group in ("g0", "g1", "g2"):
        assert not run.events(group, "discard"), "the others lose nothing"
    departures = [(e["group"], e["cause"]) for e in run.events("lighthouse", "departure") if e["incarnation"] == 1]
    assert {("g1", "left"), ("g2", "left")} <= set(departures), departures
    holds(run, steps=60)
    run.series("digest")


def test_a_join_has_its_price(rig):
    run = rig.run(
        "price",
        ranks=1,
        steps=70,
        chaos__failpoints=["g1:backward@6#0:kill"],
        fault_tolerance__transfer_rate_limit=100_000,
    )
    assert run.code == Exit.DONE, run.said
    holds(run, steps=70)
    run.series("digest")
    prices = {e["step"]: e["join_stall_s"] for e in run.events("g0", "commit")}
    healed = {e["step"] for e in run.events("g0", "commit") if e["healing"]}
    assert max(prices[step] for step in healed) > 0.1, "a heal at 100 kB/s cannot hide behind such a small step"
    assert all(prices[step] == 0.0 for step in prices if step not in healed)
