"""The lighthouse's decisions beyond the protocol model: waits with a limit, ids, drains, fences, too few groups."""

import dataclasses

from configs.protocol import Claim, Kind, Terms
from configs.words import SCRATCH, Lineage
from lighthouse.decide import Again, Expire, Lost, Request, Seat, Situation, Wait, decide, moved_on
from lighthouse.state import Fence, Participant, Stored

TERMS = Terms(run="r", config_digest="d", groups=2, min_groups=1, start_wait_s=30, failure_detection_s=2, steps=10)
G0, G1 = Participant("g0", 1), Participant("g1", 1)
RUNNING = Stored(granted=Lineage(4, 70), last_quorum_id=80, known=(G0, G1), floors={"g0": 1, "g1": 1})
NEXT = Lineage(5, 80)


def claim(group="g0", incarnation=1, lineage=NEXT, *, void=False, **more):
    return Claim(group=group, incarnation=incarnation, lineage=lineage, void=void, **more)


def void(group="g0", incarnation=1, **more):
    return claim(group, incarnation, SCRATCH, void=True, **more)


def case(*claims, stored=RUNNING, since=0.0, now=0.0, living=None, engine=None, lost=0.0, opened=0.0, **terms):
    requests = tuple(Request(claim=one, since=since) for one in claims)
    return Situation(
        requests=requests,
        stored=stored,
        living=frozenset(stored.known) | {one.who for one in requests} if living is None else frozenset(living),
        terms=dataclasses.replace(TERMS, **terms),
        engine=engine,
        opened=opened,
        lost=lost,
        now=now,
    )


def seat(*claims, **more):
    decision = decide(case(*claims, **more))
    assert isinstance(decision, Seat), decision
    return decision


def test_nothing_is_decided_while_nobody_asks():
    assert isinstance(decide(case()), Wait)


def test_both_are_seated_in_torchft_order_whatever_the_order_of_asking():
    decision = seat(claim("g1"), claim("g0"))
    assert decision.participants == (G0, G1)
    assert decision.up_to_date == ("g0", "g1")
    assert decision.current == NEXT
    assert decision.kind is Kind.TRAIN
    assert decision.rollback is None


def test_a_living_former_participant_is_never_left_out_however_long_it_takes():
    assert decide(case(claim("g0"), now=1e9, living=(G0, G1))) == Wait(
        reason="former participants have not asked: g1:1", awaited=G1
    )


def test_a_buried_former_participant_is_not_waited_for():
    assert seat(claim("g0"), stored=RUNNING.bury(G1)).participants == (G0,)


def test_former_participants_that_do_not_come_back_after_a_restart_expire_at_the_limit():
    waiting = decide(case(claim("g0"), living=(G0,), opened=100.0, now=129.0))
    assert isinstance(waiting, Wait)
    assert waiting.until == 130.0
    expired = decide(case(claim("g0"), living=(G0,), opened=100.0, now=130.0))
    assert isinstance(expired, Expire)
    assert expired.who == (G1,)


def test_newcomers_are_seated_when_they_ask_and_heal():
    decision = seat(claim("g0"), claim("g1"), void("g2"))
    assert [member.group for member in decision.members] == ["g0", "g1", "g2"]
    assert decision.up_to_date == ("g0", "g1")
    assert decision.restore is None


def test_a_lineage_in_dispute_counts_for_nobody_and_the_newest_agreed_checkpoint_is_restored():
    older = Lineage(NEXT.step - 2, NEXT.quorum_id)
    told = claim("g0", void=True, disputed=True, disk=(older,))
    for other in (claim("g1", void=True, disputed=True, disk=(older,)), claim("g1")):
        decision = seat(told, other)
        assert (decision.current, decision.restore) == (older, older)
        assert decision.rollback is not None
        assert decision.rollback.startswith(f"the groups differ at {NEXT}, none has a majority")
    assert decision.up_to_date == ("g0",), "who did not hear of it heals"


def test_a_third_group_with_another_lineage_does_not_make_a_dispute_of_it():
    decision = seat(claim("g0", void=True, disputed=True, lineage=NEXT), claim("g1", lineage=RUNNING.granted))
    assert (decision.current, decision.restore) == (RUNNING.granted, None)


def test_the_first_quorum_waits_for_the_configured_groups_up_to_its_limit():
    fresh = Stored()
    waiting = decide(case(void("g0"), stored=fresh, since=5.0, now=34.0))
    assert isinstance(waiting, Wait)
    assert waiting.until == 35.0
    assert seat(void("g0"), stored=fresh, since=5.0, now=35.0).restore == SCRATCH
    together = seat(void("g0"), void("g1"), stored=fresh, since=5.0, now=5.0)
    assert together.up_to_date == ("g0", "g1")
    assert together.rollback is None


def test_the_wait_for_others_begins_anew_when_a_participant_is_lost():
    stored = RUNNING.bury(G1).bury(G0)
    lost = case(void("g0", 2), stored=stored, since=50.0, lost=50.0, now=60.0)
    waiting = decide(lost)
    assert isinstance(waiting, Wait)
    assert waiting.until == 80.0
    early = dataclasses.replace(lost.requests[0], since=49.0)
    again = decide(dataclasses.replace(lost, requests=(early,)))
    assert again == Again(who=(Participant("g0", 2),)), "its disk was looked at while somebody current was alive"


def test_a_living_run_owns_the_history_whatever_a_joiners_disk_says():
    decision = seat(claim("g0"), void("g1", 2, disk=(Lineage(9, 99),)), stored=RUNNING.bury(G1))
    assert decision.current == NEXT
    assert decision.up_to_date == ("g0",)


def test_with_nobody_current_alive_the_newest_disk_state_is_restored_by_those_who_see_it():
    stored = RUNNING.bury(G0).bury(G1)
    disk = (Lineage(3, 70), Lineage(4, 70))
    decision = seat(void("g0", 2, disk=disk), void("g1", 2), stored=stored)
    assert decision.restore == decision.current == Lineage(4, 70)
    assert decision.up_to_date == ("g0",)
    assert decision.rollback is None


def test_equal_steps_of_other_quorums_are_other_states():
    decision = seat(claim("g0", lineage=Lineage(5, 80)), claim("g1", lineage=Lineage(5, 79)))
    assert decision.current == Lineage(5, 80)
    assert decision.up_to_date == ("g0",)


def test_who_needs_a_state_is_never_told_to_make_one_from_the_seed():
    """A step was asked for: whoever brings it gives it to the rest; if nobody does there is no start, and no fence."""
    stored = RUNNING.bury(G0).bury(G1)
    asked = void("g1", 2, needs_state=True)
    found = seat(void("g0", 2, disk=(Lineage(4, 70),)), asked, stored=stored)
    assert (found.restore, found.up_to_date) == (Lineage(4, 70), ("g0",))
    fresh = seat(void("g0", 2), asked, stored=stored)
    assert (fresh.restore, fresh.up_to_date) == (SCRATCH, ("g0",)), "where another may begin anew it heals"
    alive = seat(claim("g0"), asked, stored=RUNNING.bury(G1))
    assert (alive.restore, alive.up_to_date) == (None, ("g0",))
    assert isinstance(decide(case(asked, stored=stored, now=29.0)), Wait), "the one that has it may still come"
    for late in (case(asked, stored=stored, now=30.0), case(void("g0", 2, needs_state=True), asked, stored=stored)):
        lost = decide(late)
        assert isinstance(lost, Lost)
        assert "nobody brings the state that was asked for" in lost.reason


def test_a_rollback_is_held_until_everybody_known_has_come_then_logged_and_given_a_new_id():
    stored = RUNNING.bury(G0).bury(G1)
    old = (Lineage(3, 70),)
    waiting = decide(case(void("g0", 2, disk=old), stored=stored, now=29.0, groups=1))
    assert isinstance(waiting, Wait)
    assert "rollback" in waiting.reason
    late = seat(void("g0", 2, disk=old), stored=stored, now=30.0, groups=1)
    both = seat(void("g0", 2, disk=old), void("g1", 2), stored=stored, now=0.0)
    for decision in (late, both):
        assert decision.current == Lineage(3, 70)
        assert decision.rollback is not None
        assert decision.new_id


def test_nobody_is_rolled_back_while_one_who_asks_holds_the_granted_state():
    decision = seat(claim("g0", lineage=Lineage(4, 70)), void("g1", 2, disk=(Lineage(3, 1),)), stored=RUNNING.bury(G1))
    assert decision.current == Lineage(4, 70)
    assert decision.rollback is None


def test_the_confirmed_chain_comes_before_greater_steps_and_majorities_of_others():
    three = dataclasses.replace(RUNNING, known=(), fences=())
    decision = seat(
        claim("g0", lineage=Lineage(4, 70)),
        claim("g1", lineage=Lineage(6, 75)),
        claim("g2", lineage=Lineage(6, 75)),
        stored=three,
    )
    assert decision.current == Lineage(4, 70)
    assert decision.up_to_date == ("g0",)
    assert decision.rollback is None


def test_a_state_beside_or_above_the_confirmed_chain_is_a_rollback_too():
    lost = dataclasses.replace(RUNNING, known=())
    for lineage in (Lineage(4, 65), Lineage(5, 79), Lineage(6, 80)):
        assert seat(claim("g0", lineage=lineage), stored=lost, now=30.0).rollback is not None


def test_in_a_rollback_the_greatest_step_then_the_majority_then_the_younger_quorum_is_current():
    lost = dataclasses.replace(RUNNING, known=())
    claims = [claim(f"g{number}", lineage=Lineage(3, quorum)) for number, quorum in enumerate((60, 60, 65))]
    assert seat(*claims, stored=lost).current == Lineage(3, 60)
    assert seat(*claims[1:], stored=lost).current == Lineage(3, 65)
    assert seat(*claims, claim("g3", lineage=Lineage(4, 50)), stored=lost).current == Lineage(4, 50)


def test_fenced_lineages_are_as_good_as_void_on_disk_and_in_requests():
    stored = dataclasses.replace(RUNNING, fences=(Fence(4, 90),), last_quorum_id=90)
    decision = seat(claim("g0", lineage=Lineage(5, 80)), claim("g1", lineage=Lineage(4, 70)), stored=stored)
    assert decision.current == Lineage(4, 70)
    assert decision.up_to_date == ("g1",)
    stored = stored.bury(G0).bury(G1)
    restored = seat(void("g0", 2, disk=(Lineage(5, 80), Lineage(4, 70))), void("g1", 2), stored=stored)
    assert restored.restore == Lineage(4, 70)


def test_the_quorum_id_is_kept_while_members_stay_and_nobody_asks_for_a_fresh_one():
    kept = seat(claim("g0"), claim("g1"), engine=(G0, G1))
    assert not kept.new_id
    assert seat(claim("g0"), claim("g1", fresh=True), engine=(G0, G1)).new_id
    assert seat(claim("g0"), claim("g1"), engine=None).new_id
    assert seat(claim("g0"), stored=RUNNING.bury(G1), engine=(G0, G1)).new_id


def test_a_finished_holder_of_the_current_state_closes_the_run():
    assert seat(claim("g0", finished=True), claim("g1")).kind is Kind.CLOSING
    stale = claim("g1", lineage=Lineage(4, 70), finished=True)
    assert seat(claim("g0"), stale).kind is Kind.TRAIN


def test_a_restored_last_step_closes_the_run():
    stored = dataclasses.replace(RUNNING, granted=Lineage(10, 70)).bury(G0).bury(G1)
    assert seat(void("g0", 2, disk=(Lineage(10, 70),)), void("g1", 2), stored=stored).kind is Kind.CLOSING


def test_drains_are_granted_one_at_a_time_and_only_when_another_holds_the_state():
    one = seat(claim("g0", drain=True), claim("g1", drain=True))
    assert one.released == "g0"
    assert one.participants == (G1,)
    assert one.up_to_date == ("g1",)
    last = seat(claim("g0", drain=True), void("g1", 2), stored=RUNNING.bury(G1))
    assert last.released is None
    assert last.kind is Kind.TRAIN
    alone = seat(claim("g0", drain=True), stored=RUNNING.bury(G1))
    assert alone.kind is Kind.LEAVE


def test_below_min_groups_there_is_no_quorum_and_past_the_limit_it_is_lost():
    stored = RUNNING.bury(G1)
    waiting = decide(case(claim("g0"), stored=stored, min_groups=2, lost=10.0, now=39.0))
    assert isinstance(waiting, Wait)
    assert waiting.until == 40.0
    lost = decide(case(claim("g0"), stored=stored, min_groups=2, lost=10.0, now=40.0))
    assert isinstance(lost, Lost)
    assert "quorum lost" in lost.reason


def test_the_end_needs_no_min_groups_and_a_recorded_end_stops_everything():
    stored = RUNNING.bury(G1)
    assert seat(claim("g0", finished=True), stored=stored, min_groups=2).kind is Kind.CLOSING
    ended = dataclasses.replace(RUNNING, ended=Lineage(10, 80))
    assert isinstance(decide(case(claim("g0"), claim("g1"), stored=ended)), Wait)


def test_moved_on_is_any_request_of_a_member_but_the_attempts_own_commit():
    assert not moved_on(claim("g0", lineage=NEXT), RUNNING)
    assert moved_on(claim("g0", lineage=Lineage(4, 70)), RUNNING)
    assert moved_on(claim("g0", lineage=Lineage(5, 70)), RUNNING)
    assert moved_on(void("g0"), RUNNING)
    assert not moved_on(void("g2"), RUNNING)
    assert not moved_on(void("g0", 2), RUNNING)


def test_a_decision_does_not_depend_on_the_time_once_it_is_a_seat():
    first, later = (seat(claim("g0"), claim("g1"), now=now) for now in (0.0, 1e6))
    assert first == later
