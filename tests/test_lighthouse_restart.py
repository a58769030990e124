"""The lighthouse dies, a run is launched again on its state, a state is lost, the run ends: what is remembered."""

import pytest

from configs.protocol import Claim, Ended, Kind, Refused, Unreachable
from configs.words import RUNNING_BITS, SCRATCH, DepartureCause, Lineage
from lighthouse.client import Control
from tests.support.lighthouse import Stage, ask_all, committed, finish, started, terms, wait_asked, wait_until


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def test_a_restarted_lighthouse_goes_on_where_it_was(stage):
    g0, g1, first = started(stage)
    lost = g0.begin(committed(first))
    wait_asked(g0)
    stage.restart()
    with pytest.raises(Unreachable):
        lost[0].result(10)
    assert g0.breaks
    second, _ = ask_all((g0, committed(first), False), (g1, committed(first), False))
    assert second.current == committed(first)
    assert second.attempt >> RUNNING_BITS > first.attempt >> RUNNING_BITS
    assert second.quorum_id == second.attempt
    assert [event["step"] for event in stage.events("confirmed")] == [1]
    assert stage.events("departure") == []
    g2 = Control(stage.lighthouse.url)
    assert g2.join(terms(), group="g1").incarnation == 2
    g2.close()


def test_a_death_while_the_lighthouse_is_away_is_known_when_the_successor_joins(stage):
    g0, g1, first = started(stage)
    stage.lighthouse.stop()
    g1.close()
    stage.toys.remove(g1)
    stage.restart()
    asked = g0.begin(committed(first))
    g1 = stage.toy("g1")
    assert finish(asked).names == ("g0",)
    assert g1.incarnation == 2
    g0.wait_notice(lambda notice: [dead.incarnation for dead in notice.dead] == [1])


def test_a_run_launched_again_on_the_same_state_restores_the_granted_lineage(stage):
    g0, g1, first = started(stage)
    second, _ = ask_all((g0, committed(first), False), (g1, committed(first), False))
    for toy in (g0, g1):
        toy.close()
    stage.toys.clear()
    stage.restart()
    disk = (committed(first), committed(second))  # the second was never confirmed, yet it is the last quorum's commit
    g0, g1 = stage.toy("g0"), stage.toy("g1")
    assert (g0.incarnation, g1.incarnation) == (2, 2)
    again, _ = ask_all((g0, SCRATCH, True, {"disk": disk[:1]}), (g1, SCRATCH, True))
    assert again.restore == committed(first)
    assert again.up_to_date == ("g0",)
    assert stage.events("rollback") == []


def test_the_disk_is_looked_at_again_once_nobody_current_is_alive(stage):
    """G1 has asked while G0 still trained; G0 publishes, drains and leaves: nothing of it is lost."""
    g0, g1, first = started(stage)
    g1.close()
    stage.toys.remove(g1)
    alone = g0.ask(committed(first))
    last = g0.ask(committed(alone), drain=True)
    assert last.kind is Kind.LEAVE
    g1 = stage.toy("g1", groups=1)
    early, _ = g1.begin(void=True, disk=(committed(first),))
    wait_until(lambda: any(g["group"] == "g1" and g["asks"] for g in g1.control.status()["groups"]))
    g0.control.leave("g0", 1, cause=DepartureCause.LEFT, reason="drained")
    with pytest.raises(Unreachable, match="look at the disk again"):
        early.result(10)
    again = g1.control.ask(Claim(group="g1", incarnation=2, lineage=SCRATCH, void=True, disk=(committed(alone),)))
    assert again.restore == committed(alone)
    assert stage.events("rollback") == []


def test_a_rollback_is_logged_and_fences_the_dead_branch_for_ever(stage):
    g0, g1, first = started(stage)
    lost = committed(first)
    ask_all((g0, lost, False), (g1, lost, False))
    for toy in (g0, g1):
        toy.close()
    stage.toys.clear()
    g0, g1 = stage.toy("g0"), stage.toy("g1")
    back, _ = ask_all((g0, SCRATCH, True), (g1, SCRATCH, True))
    assert back.restore == SCRATCH
    (rollback,) = stage.events("rollback")
    assert (Lineage.parse(rollback["from"]), Lineage.parse(rollback["to"])) == (lost, SCRATCH)
    fence = Lineage(0, back.quorum_id)
    assert (first.fences, back.fences) == ((), (fence,)), "the grant tells of it, and of every one before"
    stage.restart()
    after, _ = ask_all((g0, lost, False), (g1, SCRATCH, False))
    assert after.fences == (fence,)
    assert after.current == SCRATCH
    assert after.up_to_date == ("g1",)


def test_the_end_is_recorded_survives_and_is_reopened_by_more_steps(stage):
    g0, g1, first = started(stage, steps=1)
    last = committed(first)
    closing, _ = ask_all((g0, last, False, {"finished": True}), (g1, last, False, {"finished": True}))
    assert closing.kind is Kind.CLOSING
    with pytest.raises(Refused, match="may not end"):
        g0.control.report("g0", 1, ended=SCRATCH)
    g0.control.report("g0", 1, ended=last)
    g0.control.report("g0", 1, ended=last)
    assert g1.wait_notice(lambda notice: notice.ended).ended == last
    with pytest.raises(Ended) as ended:
        g1.begin(last)[0].result(10)
    assert ended.value.lineage == last
    wait_until(lambda: len(stage.events("departure")) == 2)
    assert {event["cause"] for event in stage.events("departure")} == {"left"}
    assert [event["step"] for event in stage.events("end")] == [1]
    stage.restart()
    late = Control(stage.lighthouse.url)
    assert late.join(terms(steps=1), group="g0").ended == last
    assert late.join(terms(steps=2), group="g0").ended is None
    late.close()
