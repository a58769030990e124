"""Heals of whole runs that go wrong: a healer that is slow hurts nobody for long."""

from __future__ import annotations

from configs.words import Exit
from tests.support.rig import holds


def test_a_healer_that_is_too_slow_is_given_up_and_the_run_goes_on(rig):
    """At 20 kB/s the heal of this model takes many times the limit, though every byte comes in time."""
    run = rig.run(
        "slow-heal",
        ranks=1,
        steps=90,
        chaos__failpoints=["g1:backward@6#0:kill"],
        fault_tolerance__failure_detection_s=1,
        fault_tolerance__heal_limit_s=2,
        fault_tolerance__collective_timeout_s=60,
        fault_tolerance__transfer_rate_limit=20_000,
    )
    assert run.code == Exit.DONE, run.said
    holds(run, steps=90)
    slow = [e for e in run.events("lighthouse", "departure") if e["cause"] == "hung"]
    assert slow, "it was given up"
    assert all(e["group"] == "g1" and "has healed for" in e["reason"] for e in slow), slow
    discards = [e["reason"] for e in run.events("g0", "discard")]
    assert len(discards) == len(slow) + 1, discards
    assert set(discards[1:]) == {"peer_lost"}, discards
    quorums = run.events("lighthouse", "quorum")
    held = [e for e in quorums if e["held"] == ["g1"]]
    assert held, "its successor is held back for as long as the failed heal kept the others"
    assert all("held back: g1" in e["reason"] and e["participants"] == ["g0"] for e in held)
    told = run.events("g1", "heal_progress")
    assert told, "a long heal says how far it is"
    assert all(0 < e["bytes"] < e["total"] for e in told)
    assert not run.events("g1", "heal")


def test_a_healer_that_is_stopped_in_the_middle_is_buried_and_its_successor_heals(rig):
    run = rig.run(
        "stopped-heal",
        ranks=1,
        steps=60,
        chaos__failpoints=["g1:backward@6#0:kill", "g1:heal_recv:stop"],
        fault_tolerance__min_groups=2,  # the successor's heal comes before the end, however short the steps are
        fault_tolerance__failure_detection_s=1,
        fault_tolerance__collective_timeout_s=60,
    )
    assert run.code == Exit.DONE, run.said
    holds(run, steps=60)
    assert len(run.kills()) == 2
    departures = [e["cause"] for e in run.events("lighthouse", "departure") if e["group"] == "g1"]
    assert departures[1] in ("expired", "hung"), departures
    assert run.events("g1", "heal"), "its successor"
    assert not [e for e in run.events("g0", "exit") if e["code"] != Exit.DONE]
    run.series("digest")
