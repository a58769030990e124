"""Each counterexample of the protocol model is a test of the real thing; those of the gateway are here.

Real gRPC, torchft's real manager servers, toy groups. The names are those of tests/protocol_words.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs.protocol import Buried, Notice
from configs.words import RUNNING_BITS, SCRATCH, Lineage
from lighthouse.state import Participant, read_state
from tests.protocol_words import BUGS, RULES
from tests.support.lighthouse import Stage, ask_all, committed, finish, started, wait_asked, wait_until

TESTED_BY = {
    "no_lineage": "test_no_lineage",
    "publish_early": "test_a_state_is_published_once_it_is_confirmed_and_reads_back_to_the_bit",
    "edge_loss": "test_edge_loss",
    "buried_volatile": "test_buried_volatile",
    "granted_volatile": "test_granted_volatile",
    "known_volatile": "test_known_volatile_and_epoch_volatile",
    "epoch_volatile": "test_known_volatile_and_epoch_volatile",
    "joiner_disk": "test_joiner_disk_and_half_healed",
    "left_out": "test_left_out",
    "half_healed": "test_joiner_disk_and_half_healed",
    "window_open": "test_serving_window_is_closed_before_the_vote",
    "commit_on_error": "test_broken_sum_is_a_discard",
    "silent_rollback": "test_a_rollback_is_logged_and_fences_the_dead_branch_for_ever",
    "stale_plan": "test_healing_participant_computes_nothing_and_ends_with_the_same_state",
    "local_loss_discards": "test_call_that_is_done_wins_over_a_loss",
    "fence": "test_a_checkpoint_that_a_buried_incarnation_publishes_late_is_not_accepted",
    "moved_on": "test_a_member_that_moved_on_ends_the_attempt_for_its_fellows",
    "hold_lineage": "test_hold_lineage",
    "end_recorded": "test_the_end_is_recorded_survives_and_is_reopened_by_more_steps",
    "holder_stays": "test_holder_stays",
    "supersede": "test_supersede",
}


def test_every_counterexample_is_a_test_of_the_real_thing():
    assert set(TESTED_BY) == {*BUGS, *RULES}
    tests = "\n".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    missing = {name for name in TESTED_BY.values() if not re.search(rf"^def {name}\(", tests, re.MULTILINE)}
    assert not missing


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def alone_after_a_discard(stage):
    """Both are seated, G1 is buried, G0 discards and makes step 1 alone: (g0, g1, the lost commit, the good one)."""
    g0, g1, first = started(stage)
    g0.control.kill("g1", reason="silent")
    alone = g0.ask(SCRATCH)
    assert alone.names == ("g0",)
    return g0, g1, committed(first), committed(alone)


def test_no_lineage(stage):
    """Equal step is not equal state: a claim of step 1 that another quorum made is healed, not believed."""
    g0, _, lost, good = alone_after_a_discard(stage)
    assert lost.step == good.step
    g1 = stage.toy("g1")
    joint, _ = ask_all((g1, lost, False), (g0, good, False))
    assert (joint.current, joint.up_to_date, joint.healing) == (good, ("g0",), ("g1",))


def test_buried_volatile(stage):
    """G1 sleeps over its burial and a restart of the gateway; its commit of the same step is refused."""
    g0, g1, lost, good = alone_after_a_discard(stage)
    stage.toys.remove(g1)
    stage.restart()
    with pytest.raises(Buried):
        g1.begin(lost)[0].result(10)
    told: list[Notice] = []
    late = g1.control.watch("g1", 1, told.append, lambda reason: None)
    wait_until(lambda: told)
    assert told[0].buried
    late.close()
    g1.close()
    assert g0.ask(good).current == good


def test_granted_volatile(stage):
    """All are gone and so is the gateway: a newcomer with nothing is held, for it would roll the run back."""
    g0, g1, first = started(stage)
    ask_all((g0, committed(first), False), (g1, committed(first), False))
    for toy in (g0, g1):
        toy.close()
    stage.toys.clear()
    stage.restart()
    g0, g1 = stage.toy("g0"), stage.toy("g1")
    asked = g0.begin(void=True)
    wait_asked(g0)
    wait_until(lambda: "nobody current is alive; 1 of 2 groups have come" in g0.control.status()["waits_for"])
    other = g1.begin(void=True, disk=(committed(first),))
    assert finish(asked).restore == finish(other).restore == committed(first)
    assert stage.events("rollback") == []


def test_known_volatile_and_epoch_volatile(stage):
    """After a restart the gateway waits for those it knew, and no id is given twice."""
    g0, g1, first = started(stage)
    stage.restart()
    asked = g0.begin(committed(first))
    wait_asked(g0)
    wait_until(lambda: "former participants have not asked: g1:1" in g0.control.status()["waits_for"])
    assert not asked[0].done()
    g1.ask(committed(first))
    grant = finish(asked)
    assert grant.names == ("g0", "g1")
    assert grant.attempt > first.attempt
    assert grant.attempt >> RUNNING_BITS > first.attempt >> RUNNING_BITS


def test_left_out(stage):
    """A former participant that lives is waited for, though others, newcomers too, would be enough for a quorum."""
    g0, g1, first = started(stage)
    g2 = stage.toy("g2")
    asked, newcomer = g0.begin(committed(first)), g2.begin(void=True)
    for toy in (g0, g2):
        wait_asked(toy)
    wait_until(lambda: "former participants have not asked: g1:1" in g0.control.status()["waits_for"])
    assert not asked[0].done()
    assert not newcomer[0].done()
    g1.ask(committed(first))
    assert finish(asked).names == finish(newcomer).names == ("g0", "g1", "g2")


def test_joiner_disk_and_half_healed(stage):
    """A living run owns the history: a void group is no holder, whatever it claims and whatever its disk says."""
    g0, g1, first = started(stage)
    state = committed(first)
    g1.close()
    stage.toys.remove(g1)
    alone = g0.ask(state)
    g1, now = stage.toy("g1"), committed(alone)
    joint, _ = ask_all((g0, now, False), (g1, now, True, {"disk": (Lineage(9, first.quorum_id), now)}))
    assert (joint.current, joint.restore, joint.up_to_date) == (now, None, ("g0",))


def test_edge_loss(stage):
    """Who connects after a death, or after a fellow has moved on, is told of it too."""
    g0, g1, first = started(stage)
    asked = g1.begin(SCRATCH)
    wait_asked(g1)
    told: list[Notice] = []
    late = g0.control.watch("g0", 1, told.append, lambda reason: None)
    wait_until(lambda: told)
    assert told[0].over == (first.attempt,)
    late.close()
    g1.watch.close()
    with pytest.raises(Buried):
        asked[0].result(10)
    second: list[Notice] = []
    later = g0.control.watch("g0", 1, second.append, lambda reason: None)
    wait_until(lambda: second)
    assert [(dead.group, dead.incarnation) for dead in second[0].dead] == [("g1", 1)]
    later.close()


def test_hold_lineage(stage):
    """G0 commits and dies, G1 goes on without that commit; whoever brings it later, at a greater step too, heals."""
    g0, g1, first = started(stage)
    orphan = committed(first)
    g0.close()
    stage.toys.remove(g0)
    alone = g1.ask(SCRATCH)
    g0 = stage.toy("g0")
    far = Lineage(orphan.step + 5, orphan.quorum_id)
    joint, _ = ask_all((g0, far, False), (g1, committed(alone), False))
    assert (joint.current, joint.up_to_date) == (committed(alone), ("g1",))
    assert stage.events("rollback") == []


def test_holder_stays(stage):
    """A drain is not granted to the only one that holds the current state: the other heals first."""
    g0, g1, first = started(stage)
    g1.close()
    stage.toys.remove(g1)
    alone = g0.ask(committed(first))
    g1, state = stage.toy("g1"), committed(alone)
    joint, _ = ask_all((g0, state, False, {"drain": True}), (g1, SCRATCH, True))
    assert joint.names == ("g0", "g1"), "seated once more"
    state = committed(joint)
    wait = g1.begin(state)
    wait_asked(g1)
    released, _ = g0.begin(state, drain=True)
    assert released.result(10).kind == "release"
    assert finish(wait).names == ("g1",)


def test_supersede(stage):
    """A new incarnation buries the one before it, on disk, before it is seated."""
    g0, old, first = started(stage)
    new = stage.toy("g1")
    assert read_state(stage.lighthouse.settings.state).buried(Participant(old.name, old.incarnation))
    with pytest.raises(Buried, match="superseded by g1:2"):
        old.begin(committed(first))[0].result(10)
    joint, _ = ask_all((g0, committed(first), False), (new, SCRATCH, True))
    assert [member.replica_id for member in joint.members] == ["g0:1", "g1:2"]
