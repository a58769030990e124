"""Groups that hang or fall silent without dying: noticed within the detection time, buried, replaced; nothing is lost.

Collective timeouts are 60 s, so only the judgement of the pulses can have ended the wait.
"""

from __future__ import annotations

import pytest

from configs.words import Exit
from tests.support.rig import holds

KEYS = {"fault_tolerance__collective_timeout_s": 60, "fault_tolerance__failure_detection_s": 2}


@pytest.mark.parametrize(
    ("name", "points", "causes"),
    [
        pytest.param("a stopped rank 0", ["g1:backward@12#0:stop"], {"expired", "hung"}, marks=pytest.mark.long),
        ("a stopped rank 1", ["g1:backward@12#1:stop"], {"hung"}),
        ("a main thread that hangs", ["g1:forward@12#1:hang"], {"hung"}),
        pytest.param(
            "both ranks stopped",
            ["g1:reduce@12#0:stop", "g1:reduce@12#1:stop"],
            {"expired", "hung"},  # rank 1 may have been the first
            marks=pytest.mark.long,
        ),
    ],
)
def test_who_hangs_is_buried_and_replaced(rig, name, points, causes):
    run = rig.run(name.replace(" ", "-"), steps=60, chaos__failpoints=points, **KEYS)
    assert run.code == Exit.DONE, run.said
    departures = [e for e in run.events("lighthouse", "departure") if e["cause"] in ("hung", "expired")]
    assert [e["group"] for e in departures] == ["g1"], departures
    assert departures[0]["cause"] in causes, departures
    assert departures[0]["incarnation"] == 1
    discards = run.events("g0", "discard")
    assert [e["reason"] for e in discards] == ["peer_lost"], discards
    holds(run, steps=60)
    run.series("digest")
    assert any(e["incarnation"] == 2 for e in run.events("g1", "commit")), "the successor took part"


def test_a_lone_group_that_pauses_is_waited_for(rig):
    """The last holder of the current lineage is never buried: a pause longer than the detection time costs nothing."""
    run = rig.run("pause", groups=1, ranks=1, steps=30, chaos__failpoints=["g0:data@9:delay=6"], **KEYS)
    assert run.code == Exit.DONE, run.said
    assert not [e for e in run.events("lighthouse", "departure") if e["cause"] in ("hung", "expired")]
    assert {e["incarnation"] for e in run.events("g0", "commit")} == {1}
