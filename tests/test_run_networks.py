"""A network that goes silent without closing anything: hosts that vanish, and a path between two that does.

Collective timeouts are 60 s, and the kernel would keep such a connection for minutes.
"""

from __future__ import annotations

import time

import pytest

from configs.words import Exit
from tests.support.far_field import FarField, why_not
from tests.support.field import never_confirmed, one_history

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
DETECTION_S = 1.0


def test_a_host_that_falls_silent_is_buried_and_refused_when_it_is_back(rig):
    with FarField(rig, "silent-host") as field:
        field.start("g0", "g1")
        field.wait_commit("g0", step=5)
        field.hosts.silence("g1")
        silent = time.time()
        gone = field.wait_gone("g1")
        assert gone["cause"] == "expired"
        alone = field.wait_commit("g0", after=silent, alone=True)
        began = alone["t"] - alone["seconds"]
        print(
            f"\nsilence to the start of the survivor's next attempt: {began - silent:.2f} s, detection {DETECTION_S} s"
        )
        assert began - silent < 15
        field.wait_commit("g0", step=alone["step"] + 5)
        field.hosts.silence("g1", silent=False)
        assert field.exit_code("g1") == Exit.INCARNATION_OVER
        assert field.events("g1", "exit")[-1]["reason"].startswith("buried: silent for")
        field.start("g1")
        heal = field.wait("g1", "heal")
        field.wait_commit("g1", after=heal["t"])
        run = field.drain()
    one_history(run)
    never_confirmed(run, "g1", 1, after=silent)
    assert {e["incarnation"] for e in run.events("g0", "commit")} == {1}


@pytest.mark.long
def test_a_lighthouse_that_falls_silent_is_waited_for(rig):
    """Nobody is dead: both groups pause, and go on when the path is back."""
    with FarField(rig, "silent-lighthouse") as field:
        field.start("g0", "g1")
        field.wait_commit("g0", step=5)
        field.hosts.silence("lh")
        time.sleep(4 * DETECTION_S)  # the length of the fault
        field.hosts.silence("lh", silent=False)
        back = time.time()
        first = field.wait_commit("g0", after=back)
        print(f"\nfrom the return of the path to a commit: {first['t'] - back:.2f} s")
        last = field.wait_commit("g0", step=first["step"] + 10)
        run = field.drain()
    one_history(run)
    assert [e for e in run.events("lighthouse", "departure") if e["t"] < last["t"]] == []
    assert {e["incarnation"] for g in ("g0", "g1") for e in run.events(g, "commit")} == {1}


@pytest.mark.long
def test_a_cut_between_two_groups_does_not_end_in_endless_discards(rig):
    """Both reach the gateway: after two attempts that failed with all alive one is buried, the other goes on."""
    with FarField(rig, "cut") as field:
        field.start("g0")
        field.wait("g0", "start")
        field.start("g1")
        field.wait_commit("g0", step=5)
        field.hosts.cut("g0", "g1")
        cut = time.time()
        alone = field.wait_commit("g0", after=cut, alone=True)
        print(f"\ncut to the survivor's next commit: {alone['t'] - cut:.2f} s, detection {DETECTION_S} s")
        (gone,) = field.events("lighthouse", "departure")
        assert (gone["group"], gone["cause"]) == ("g1", "hung"), "the youngest"
        assert field.exit_code("g1") == Exit.INCARNATION_OVER
        discards = [e for e in field.events("g0", "discard") if e["t"] > cut]
        assert 2 <= len(discards) <= 3, discards
        field.wait_commit("g0", step=alone["step"] + 5)
        field.hosts.cut("g0", "g1", cut=False)
        field.start("g1")
        heal = field.wait("g1", "heal")
        field.wait_commit("g1", after=heal["t"])
        run = field.drain()
    one_history(run)
    never_confirmed(run, "g1", 1, after=cut)
