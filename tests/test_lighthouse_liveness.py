"""Who is buried for silence or for hanging, and who is not: the judgement is pure, so every rule is a table."""

from __future__ import annotations

from configs.protocol import Pulse, RankPulse
from configs.words import DepartureCause
from lighthouse.liveness import Case, Heard, judge
from lighthouse.state import Participant

G0, G1, G2 = (Participant(f"g{i}", 1) for i in range(3))
NOW = 100.0


def rank(phase: str, age: float = 0.1, *, attempt: int = 7, silent: float = 0.0) -> RankPulse:
    return RankPulse(attempt=attempt, phase=phase, age_s=age, silent_s=silent)


def heard(
    who: Participant,
    *ranks: RankPulse,
    gap: float = 0.1,
    usual: float | None = 0.5,
    joined: float = 0.0,
    asks: bool = False,
) -> Heard:
    return Heard(who=who, pulse=Pulse(ranks=ranks, usual_s=usual), at=NOW - gap, joined=joined, asks=asks)


def verdicts(*groups: Heard, **changes) -> list[tuple[str | None, DepartureCause]]:
    members = tuple(h.who for h in groups)
    usual = {
        "heard": groups,
        "members": members,
        "holders": tuple(who.group for who in members),
        "attempt": 7,
        "over": False,
        "failures": 0,
        "detection_s": 2.0,
        "first_step_s": 600.0,
        "now": NOW,
    }
    return [(v.who.group if v.who else None, v.cause) for v in judge(Case(**{**usual, **changes}))]


def test_nobody_is_judged_while_all_work():
    assert verdicts(heard(G0, rank("compute")), heard(G1, rank("reduce", 0.4))) == []


def test_a_host_that_falls_silent_expires():
    assert verdicts(heard(G0, rank("reduce")), heard(G1, rank("compute"), gap=2.1)) == [("g1", DepartureCause.EXPIRED)]
    assert verdicts(heard(G0, rank("reduce")), heard(G1, rank("compute"), gap=1.9)) == []


def test_one_silent_rank_hangs_its_group():
    stopped = heard(G1, rank("compute"), rank("compute", silent=2.05))
    assert verdicts(heard(G0, rank("reduce"), rank("reduce")), stopped) == [("g1", DepartureCause.HUNG)]


def test_a_rank_that_others_wait_for_longer_than_its_own_times_allow():
    waits = heard(G0, rank("reduce", 3.0))
    assert verdicts(waits, heard(G1, rank("compute", 3.2), usual=1.0)) == [("g1", DepartureCause.HUNG)]
    assert verdicts(waits, heard(G1, rank("compute", 3.2), usual=2.0)) == [], "twice its usual is not up yet"


def test_a_first_step_with_its_compile_is_given_the_first_steps_limit():
    waits = heard(G0, rank("reduce", 30.0))
    assert verdicts(waits, heard(G1, rank("compute", 31.0), usual=None)) == []
    assert verdicts(waits, heard(G1, rank("compute", 31.0), usual=None), first_step_s=20.0) == [
        ("g1", DepartureCause.HUNG)
    ]


def test_who_has_not_asked_is_behind_those_who_have():
    asked = heard(G0, rank("quorum", 3.0), asks=True)
    assert verdicts(asked, heard(G1, rank("quorum", 3.0))) == [("g1", DepartureCause.HUNG)]
    assert verdicts(asked, heard(G1, rank("quorum", 3.0)), over=True) == [("g1", DepartureCause.HUNG)]
    connecting = heard(G0, rank("quorum", 3.0))
    assert verdicts(connecting, heard(G1, rank("quorum", 3.0))) == [(None, DepartureCause.HUNG)], "a cut: nobody asks"


def test_who_does_not_leave_an_attempt_that_is_over_is_behind():
    asked = heard(G0, rank("quorum", 3.0), asks=True)
    assert verdicts(asked, heard(G1, rank("compute", 5.0)), over=True) == [("g1", DepartureCause.HUNG)]
    assert verdicts(asked, heard(G1, rank("compute", 5.0), usual=2.0), over=True) == [], "it finishes its backward"


def test_two_of_three_are_stuck_and_the_third_waits():
    waits = heard(G0, rank("reduce", 5.0))
    stuck = [heard(G1, rank("optimizer", 5.0)), heard(G2, rank("compute", 5.0))]
    assert verdicts(waits, *stuck) == [("g1", DepartureCause.HUNG), ("g2", DepartureCause.HUNG)]


def test_a_heal_has_limits_of_its_own():
    assert verdicts(heard(G0, rank("reduce", 9.0)), heard(G1, rank("heal", 9.0))) == []


def test_a_group_whose_ranks_do_not_all_wait_is_not_waiting():
    half = heard(G0, rank("reduce", 9.0), rank("compute", 0.1))
    assert verdicts(half, heard(G1, rank("compute", 9.0))) == []


def test_all_wait_for_all_and_the_attempt_is_ended():
    cut = [heard(G0, rank("reduce", 3.0)), heard(G1, rank("reduce", 2.5))]
    assert verdicts(*cut) == [(None, DepartureCause.HUNG)]
    assert verdicts(*cut, over=True) == [], "once is enough"
    asked = heard(G1, rank("quorum", 2.5))
    assert verdicts(cut[0], asked) == [(None, DepartureCause.HUNG)], "one has asked again, the other waits in the sum"


def test_after_two_failed_attempts_with_all_alive_the_youngest_is_buried():
    groups = [heard(G0, rank("quorum"), joined=10.0), heard(G1, rank("quorum"), joined=50.0)]
    assert verdicts(*groups, failures=2) == [("g1", DepartureCause.HUNG)]
    assert verdicts(*groups, failures=1) == []


def test_the_last_holder_of_the_current_lineage_is_never_buried():
    assert verdicts(heard(G0, rank("compute"), gap=9.0)) == []
    healer = heard(G1, rank("heal"))
    assert verdicts(heard(G0, rank("compute"), gap=9.0), healer, holders=("g0",)) == []
    both = [heard(G0, rank("compute"), gap=9.0), heard(G1, rank("compute"), gap=9.0)]
    assert len(verdicts(*both)) == 1, "of two holders one stays"


def test_a_rank_that_has_not_heard_of_the_attempt_is_behind():
    late = heard(G1, rank("quorum", attempt=6), usual=0.5)
    assert verdicts(heard(G0, rank("reduce", 3.0)), late) == [("g1", DepartureCause.HUNG)]


def test_groups_outside_the_quorum_do_not_count():
    assert verdicts(heard(G0, rank("reduce", 9.0)), heard(G1, rank("compute", 9.0)), members=(G0,)) == []


def test_a_heal_that_keeps_others_waiting_for_too_long_ends_with_the_healer():
    def healing(age: float, others: str = "reduce") -> list[tuple[str | None, DepartureCause]]:
        return verdicts(
            heard(G0, rank(others, 9.0), usual=20.0), heard(G1, rank("heal", age)), holders=("g0",), heal_s=10.0
        )

    assert healing(9.8) == []
    assert healing(10.1) == [("g1", DepartureCause.HUNG)]
    assert healing(99.0, others="compute") == [], "nobody waits for it"
