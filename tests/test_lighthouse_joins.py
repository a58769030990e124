"""When newcomers are seated: at once by default, spaced where asked, held back after a failed heal; never at the price
of the run."""

import dataclasses

import pytest

from configs.words import Lineage
from lighthouse.decide import Wait, decide
from lighthouse.joins import LONGEST_HOLD_S, Hold, Joins, held_back
from lighthouse.state import Participant
from tests.test_lighthouse_decide import G0, G1, NEXT, RUNNING, case, claim, seat, void

G2 = Participant("g2", 1)
NOBODY = Hold()


def held(*claims, hold, now=0.0, stored=RUNNING, **more):
    decision = decide(dataclasses.replace(case(*claims, stored=stored, now=now, **more), hold=hold))
    assert not isinstance(decision, Wait), decision
    return [member.group for member in decision.members], list(decision.held)


def test_all_who_ask_together_join_at_once_by_default():
    assert held(claim("g0"), claim("g1"), void("g2"), void("g3"), hold=NOBODY) == (["g0", "g1", "g2", "g3"], [])


def test_spaced_joins_wait_for_their_turn_and_come_together():
    hold = Hold(until=10.0)
    claims = (claim("g0"), claim("g1"), void("g2"), void("g3"))
    assert held(*claims, hold=hold, now=9.9) == (["g0", "g1"], ["g2", "g3"])
    assert held(*claims, hold=hold, now=10.0) == (["g0", "g1", "g2", "g3"], [])


def test_the_reason_of_a_quorum_names_who_is_held_back():
    decision = decide(dataclasses.replace(case(claim("g0"), claim("g1"), void("g2")), hold=Hold(until=10.0)))
    assert decision.reason.endswith("held back: g2")


def test_one_group_is_held_back_for_its_own_failed_heal():
    hold = Hold(groups={"g2": 10.0})
    assert held(claim("g0"), claim("g1"), void("g2"), void("g3"), hold=hold) == (["g0", "g1", "g3"], ["g2"])


def test_nobody_is_held_back_where_the_run_needs_them():
    hold = Hold(until=10.0)
    alone = RUNNING.bury(G1)
    needed = held(claim("g0"), void("g1", 2), hold=hold, stored=alone, min_groups=2)
    assert needed == (["g0", "g1"], []), "below min_groups"
    leaving = held(claim("g0", drain=True), void("g1", 2), hold=hold, stored=alone)
    assert leaving == (["g0", "g1"], []), "the last holder wants to leave"
    nobody = RUNNING.bury(G0).bury(G1)
    assert held(void("g0", 2), void("g1", 2), hold=hold, stored=nobody) == (["g0", "g1"], []), "all were lost"


def test_a_newcomer_that_holds_the_state_is_nobodys_price():
    assert held(claim("g0"), claim("g1"), claim("g2"), hold=Hold(until=10.0)) == (["g0", "g1", "g2"], [])


def test_a_former_participant_that_must_heal_is_never_held_back():
    groups, waiting = held(claim("g0"), claim("g1", lineage=Lineage(4, 70)), hold=Hold(until=10.0))
    assert (groups, waiting) == (["g0", "g1"], [])
    assert seat(claim("g0"), claim("g1", lineage=Lineage(4, 70))).up_to_date == ("g0",)
    assert claim().lineage == NEXT


@pytest.mark.parametrize(("others", "least", "count"), [(0, 1, 0), (1, 1, 1), (1, 2, 0), (2, 2, 1)])
def test_the_least_number_goes_before_any_hold(others, least, count):
    assert len(held_back([G2], others=others, least=least, hold=Hold(until=1.0), now=0.0)) == count


def grant(joins, *members, healing=(), before=(G0, G1), now):
    up_to_date = [who.group for who in members if who not in healing]
    joins.granted(members=members, before=before, up_to_date=up_to_date, now=now)


def test_the_interval_counts_from_the_last_join_and_a_first_quorum_is_none():
    joins = Joins()
    grant(joins, G0, G1, before=(), now=1.0)
    assert joins.hold(interval_s=5.0).release("g2") < 1.0
    grant(joins, G0, G1, G2, healing=(G2,), now=2.0)
    assert joins.hold(interval_s=5.0).release("g3") == 7.0
    grant(joins, G0, G1, G2, before=(G0, G1, G2), now=3.0)
    assert joins.hold(interval_s=5.0).release("g3") == 7.0


def failed_heal(joins, incarnation, *, seconds, now):
    """g2 was seated to heal and died ``seconds`` later, at ``now``."""
    who = Participant("g2", incarnation)
    grant(joins, G0, G1, who, healing=(who,), now=now - seconds)
    joins.lost(who, now=now)


def test_a_heal_that_fails_holds_its_group_for_what_it_cost_and_twice_as_long_each_time_until_one_succeeds():
    joins = Joins()
    for count, wait in enumerate([3.0, 6.0, 12.0], start=1):
        failed_heal(joins, count, seconds=3.0, now=100.0 * count)
        assert joins.hold(interval_s=0.0).release("g2") == 100.0 * count + wait
    assert joins.hold(interval_s=0.0).release("g3") <= 300.0
    healed = Participant("g2", 4)
    grant(joins, G0, G1, healed, now=500.0)
    assert joins.hold(interval_s=0.0).release("g2") <= 500.0
    joins.lost(healed, now=501.0)
    assert joins.hold(interval_s=0.0).release("g2") <= 501.0, "it was not healing"


def test_a_hold_has_a_limit():
    joins = Joins()
    for count in range(1, 40):
        failed_heal(joins, count, seconds=1.0, now=50.0)
    assert joins.hold(interval_s=0.0).release("g2") == 50.0 + LONGEST_HOLD_S
