"""Every second of every group is in one phase: told with logs made by hand, and held for any logs whatever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.clocks import align
from ops.goodput import PHASES, read_goodput
from ops.ratios import read_ratios
from ops.report import Plan, read_report
from tests.support.attempts import CHAIN, LAUNCH, STEP, discard, leaving, life, of, quorum, start, step
from tests.support.logs import lineage, logs


def seconds(told, group: str, **options) -> dict[str, float]:
    found = read_goodput(told, **options)
    assert math.fsum(found.seconds[group].values()) == pytest.approx(found.wall_s)
    return {phase: pytest.approx(s, abs=1e-6) for phase, s in found.seconds[group].items()}


def test_a_group_from_its_launch_to_its_end():
    """Launched at 100, there at 101, ready at 104 (half a second of it rehearsal), five steps, a closing quorum."""
    events = life(began=101.0, ready=104.0, steps=range(1, 6))
    told = logs(CHAIN, [LAUNCH], g0=[*events, quorum(109.3, attempt=6, seconds=0.3), leaving(110.0)])
    assert read_goodput(told).seconds["g0"] == {
        "starting": pytest.approx(3.5),
        "rehearse": pytest.approx(0.5),
        "quorum": pytest.approx(5 * 0.08 + 0.08),
        "compute": pytest.approx(3.0),
        "reduce": pytest.approx(0.5),
        "vote": pytest.approx(0.25),
        "optimizer": pytest.approx(0.75),
        "checkpoint_stall": pytest.approx(0.1),
        "waiting": pytest.approx(0.3 - 0.08),  # longer than a quorum of this run usually takes
        "draining": pytest.approx(0.7),
    }


def test_a_killed_group_is_gone_until_its_successor_begins():
    """Killed at 107.2 in its fourth attempt: what that had done is discarded, the time until the next process gone."""
    first = life(began=101.0, ready=104.0, steps=range(1, 4))
    second = life(began=108.0, ready=109.0, steps=range(5, 6), incarnation=2)
    deaths = [
        of("g0", {"t": 107.2, "event": "fault", "action": "kill"}),
        of("g0", {"t": 107.3, "event": "exit", "incarnation": 1, "code": -9, "reason": "killed by SIGKILL"}),
    ]
    told = logs(CHAIN, [LAUNCH, *deaths], g0=[*first, quorum(107.1, attempt=4), *second, leaving(110.5, incarnation=2)])
    found = read_goodput(told).seconds["g0"]
    assert found["gone"] == pytest.approx(0.8)
    assert found["discarded"] == pytest.approx(0.18)  # from its asking on
    assert found["starting"] == pytest.approx(3.5 + 0.5)
    assert found["compute"] == pytest.approx(4 * 0.6)


def test_a_death_that_only_the_lighthouse_saw():
    """A group that was started apart: no launcher writes here."""
    gone = of("g1", {"t": 106.5, "event": "departure", "incarnation": 1, "cause": "exited", "reason": "it closed"})
    g1 = [*life(began=101.0, ready=104.0, steps=range(1, 3)), quorum(106.1, attempt=3)]
    told = logs([*CHAIN, gone], g0=life(began=101.0, ready=104.0, steps=range(1, 6)), g1=g1)
    found = read_goodput(told).seconds["g1"]
    assert found["gone"] == pytest.approx(109.0 - 106.5)
    assert found["discarded"] == pytest.approx(0.48)


def test_a_burial_that_was_found_out_late_tells_no_time():
    late = {"t": 109.0, "event": "departure", "incarnation": 1, "cause": "exited", "reason": "superseded by g1.2"}
    g1 = [
        *life(began=101.0, ready=104.0, steps=range(1, 3)),
        *life(began=108.5, ready=109.0, steps=range(0), incarnation=2),
    ]
    told = logs([*CHAIN, of("g1", late)], g0=life(began=101.0, ready=104.0, steps=range(1, 6)), g1=g1)
    assert read_goodput(told).seconds["g1"]["gone"] == pytest.approx(108.5 - 106.0)  # since its last sign of life


def test_a_run_killed_whole_and_launched_again():
    first = life(began=101.0, ready=104.0, steps=range(1, 4))
    second = life(began=202.0, ready=204.0, steps=range(4, 6), incarnation=2)
    chain = [*CHAIN[:3], CHAIN[3] | {"t": 205.0}, CHAIN[4] | {"t": 206.0}]
    told = logs(chain, [LAUNCH, LAUNCH | {"t": 200.0}], g0=[*first, *second])
    found = read_goodput(told).seconds["g0"]
    assert found["gone"] == pytest.approx(200.0 - 107.0)
    assert found["starting"] == pytest.approx(3.5 + 3.5)
    assert seconds(told, "g0", since=200.0)["starting"] == 3.5
    ratios = read_ratios(told, groups=2)
    assert ratios.goodput_ratio == pytest.approx(4 / (4 + 4))  # four steps, and a start of four seconds


def test_a_run_killed_whole_whose_next_launch_comes_to_nothing():
    told = logs(CHAIN[:3], [LAUNCH, LAUNCH | {"t": 200.0}], g0=life(began=101.0, ready=104.0, steps=range(1, 4)))
    found = read_goodput(told).seconds["g0"]
    assert found["gone"] == pytest.approx(200.0 - 107.0)
    assert "waiting" not in found


def test_a_group_that_never_came_is_gone_all_the_time():
    told = logs(CHAIN, [LAUNCH], g0=life(began=101.0, ready=104.0, steps=range(1, 6)))
    assert seconds(told, "g1", groups=["g1"]) == {"gone": 9.0}
    report = read_report(told, plan=Plan(groups=3))
    assert set(report.seconds) == {"g0", "g2"}  # g1 took part, by g0's word: its log lies elsewhere
    assert report.elsewhere == ("g1",)


@pytest.mark.parametrize("how", ["orphaned", "rolled back", "unconfirmed"])
def test_work_outside_the_confirmed_history_is_discarded(how):
    events = life(began=101.0, ready=104.0, steps=range(1, 4))
    third = next(e for e in events if e.get("step") == 3)
    chain = CHAIN[:3]
    if how == "orphaned":  # as far as the lighthouse's word goes it might still be confirmed
        chain = CHAIN[:2]
        third["lineage"] = "3:1.99"
        events.append({"t": 107.1, "event": "orphaned", "step": 3, "lineage": "3:1.99", "incarnation": 1})
    elif how == "rolled back":
        chain = [*chain, {"t": 107.2, "event": "rollback", "to": lineage(2)}]
    else:
        third["lineage"] = "3:1.99"
        chain = [*CHAIN[:2], *(event | {"t": 107.0} for event in CHAIN[2:4])]
    found = read_goodput(logs(chain, g0=events)).seconds["g0"]
    assert found["discarded"] == pytest.approx(1.0 - 0.02)
    assert found["checkpoint_stall"] == pytest.approx(3 * 0.02)
    assert found["compute"] == pytest.approx(2 * 0.6)


def test_the_newest_commit_of_a_running_job_is_kept_for_now():
    events = [*life(began=101.0, ready=104.0, steps=range(1, 4)), quorum(107.1, attempt=4)]
    found = read_goodput(logs(CHAIN[:2], g0=events, g1=[quorum(107.4, attempt=4, seconds=0.4)]))
    assert found.running
    assert found.seconds["g0"]["compute"] == pytest.approx(3 * 0.6)
    assert found.seconds["g0"]["other"] == pytest.approx(0.02 + 0.3)  # the attempt under way
    ended = logs([*CHAIN[:3], {"t": 108.0, "event": "end", "step": 3}], g0=[*events[:-1], leaving(108.0)])
    assert not read_goodput(ended).running


def test_waiting_is_what_a_group_asked_longer_than_its_fellows():
    """g0 waits five seconds for g1 to come: its attempt may end as it likes, that was no work of it."""
    wait = quorum(109.0, attempt=1, seconds=5.0)
    late = [start(108.9, began=105.0), quorum(109.0, attempt=1), step(1, t=109.92)]
    kept = step(1, t=109.92, phases={**STEP, "quorum": 5.0, "checkpoint_stall": 0.0})
    g0 = [start(104.0, began=101.0), wait, kept]
    assert read_goodput(logs(CHAIN, g0=g0, g1=late)).seconds["g0"]["waiting"] == pytest.approx(5.0 - 0.08)
    lost = [start(104.0, began=101.0), wait, discard(109.92, attempt=1, seconds=5.92)]
    found = read_goodput(logs(CHAIN, g0=lost, g1=late)).seconds["g0"]
    assert found["waiting"] == pytest.approx(5.0 - 0.08)
    assert found["discarded"] == pytest.approx(0.92 + 0.08)


def test_a_restore_is_healing_and_no_quorum():
    restore = {"t": 104.9, "event": "restore", "seconds": 0.7, "incarnation": 1}
    first = step(1, t=105.9, phases={**STEP, "quorum": 0.8, "checkpoint_stall": 0.0})
    told = logs(CHAIN, g0=[start(104.0, began=101.0), quorum(104.1, attempt=1), restore, first])
    found = read_goodput(told).seconds["g0"]
    assert (found["heal"], found["quorum"]) == (pytest.approx(0.7), pytest.approx(0.1))


def test_records_that_tell_of_more_than_there_was_are_scaled():
    told = logs(CHAIN, g0=[start(104.0, began=104.0, rehearse=0.0), step(1, t=104.5), step(2, t=105.5)])
    found = read_goodput(told).seconds["g0"]
    assert found["compute"] == pytest.approx(0.3 + 0.6)


def test_an_incarnation_that_slept_gives_its_time_to_its_successor():
    """g0.1 was paused at 106 and wakes at 112, when g0.2 has trained for long."""
    zombie = [*life(began=101.0, ready=104.0, steps=range(1, 3)), leaving(112.0, code=7)]
    young = life(began=107.0, ready=108.0, steps=range(3, 6), incarnation=2)
    found = read_goodput(logs(CHAIN, g0=[*zombie[:-1], *young, zombie[-1]]))
    assert found.seconds["g0"]["compute"] == pytest.approx(5 * 0.6)
    assert found.wall_s == pytest.approx(11.0)


def test_a_group_that_dies_while_it_builds_was_starting():
    ends = of("g0", {"t": 103.0, "event": "exit", "incarnation": 1, "code": 7, "reason": "exit 7"})
    joins = of("g0", {"t": 101.5, "event": "join", "incarnation": 1})
    told = logs([joins, *CHAIN], [LAUNCH, ends], g0=life(began=104.0, ready=105.0, steps=range(1, 6), incarnation=2))
    found = read_goodput(told).seconds["g0"]
    assert found["starting"] == pytest.approx(3.0 + 0.5)
    assert found["gone"] == pytest.approx(1.0)


def hosts(ahead: float) -> dict:
    """g0 on the lighthouse's host; g1 on another, whose clock is ahead."""
    decided = [
        {"t": 104.0 + s - 1 + 0.09, "event": "quorum", "attempt": s, "participants": ["g0", "g1"]} for s in range(1, 6)
    ]
    g1 = [
        e | {"t": e["t"] + ahead} | ({"began_t": e["began_t"] + ahead, "host": "b"} if "began_t" in e else {})
        for e in life(began=101.0, ready=104.0, steps=range(1, 6))
    ]
    launcher = [LAUNCH | {"host": "a"}, {"t": 100.5, "event": "lighthouse", "host": "a"}]
    g0 = life(began=101.0, ready=104.0, steps=range(1, 6))
    return {"lighthouse": [*CHAIN, *decided], "launcher": launcher, "g0": g0, "g1": g1}


@pytest.mark.parametrize("ahead", [-30.0, -0.2, 0.2, 30.0])
def test_clocks_of_other_hosts_are_set_by_the_quorums(ahead):
    told, clocks = align(logs(**hosts(ahead)))
    assert [(c.host, c.steady) for c in clocks] == [("b", True)]
    assert clocks[0].ahead_s == pytest.approx(ahead, abs=0.05)  # half of what a quorum takes
    true = read_goodput(logs(**hosts(0.0))).seconds["g1"]
    assert read_goodput(told).seconds["g1"] == pytest.approx(true, abs=0.1)


def test_a_clock_that_may_be_right_is_left_alone():
    told = logs(**hosts(0.01))
    assert align(told) == (told, ())


def test_a_clock_that_was_set_while_the_run_went_on_is_told():
    told = hosts(0.0)
    told["g1"] = [e | {"t": e["t"] + (50.0 if e["t"] > 106.5 else 0.0)} for e in told["g1"]]
    aligned, (clock,) = align(logs(**told))
    assert not clock.steady
    assert read_goodput(aligned).seconds


# ---- any logs ------------------------------------------------------------------------------------------------------

TIMES = st.floats(0.0, 50.0, allow_nan=False).map(lambda t: 1000.0 + t)
LENGTHS = st.floats(0.0, 20.0)
EVENTS = st.fixed_dictionaries(
    {
        "t": TIMES,
        "event": st.sampled_from(["start", "quorum", "commit", "discard", "exit", "restore", "orphaned", "heal"]),
    },
    optional={
        "incarnation": st.integers(0, 3),
        "phases": st.dictionaries(st.sampled_from([*PHASES, "a new phase"]), LENGTHS, max_size=6),
        "parts_s": st.dictionaries(st.sampled_from(["join", "model", "rehearse"]), LENGTHS),
        "began_t": TIMES,
        "seconds": LENGTHS,
        "attempt": st.integers(0, 5),
        "step": st.integers(0, 4),
        "lineage": st.sampled_from([lineage(s) for s in range(5)]),
        "code": st.sampled_from([0, 7, 75, -9]),
        "host": st.sampled_from(["a", "b"]),
        "participants": st.lists(st.sampled_from(["g0", "g1"]), unique=True),
        "tokens": st.integers(0, 16),
    },
)
ELSEWHERE = st.fixed_dictionaries(
    {
        "t": TIMES,
        "event": st.sampled_from(
            ["exit", "fault", "departure", "join", "confirmed", "rollback", "quorum", "launch", "end"]
        ),
        "group": st.sampled_from(["g0", "g1", None]),
    },
    optional={
        "incarnation": st.integers(0, 3),
        "action": st.just("kill"),
        "groups": st.just(["g0", "g1"]),
        "reason": st.sampled_from(["superseded by g1.2", "its stream closed"]),
        "attempt": st.integers(0, 5),
        "lineage": st.sampled_from([lineage(s) for s in range(5)]),
        "code": st.sampled_from([0, 7, 75, -9]),
        "host": st.sampled_from(["a", "b"]),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    g0=st.lists(EVENTS, max_size=12),
    g1=st.lists(EVENTS, max_size=6),
    lighthouse=st.lists(ELSEWHERE, max_size=6),
    launcher=st.lists(ELSEWHERE, max_size=6),
    since=st.sampled_from([0.0, 1010.0]),
)
def test_any_logs_are_cut_without_gap_or_overlap(g0, g1, lighthouse, launcher, since):
    report = read_report(logs(lighthouse, launcher, g0=g0, g1=g1), since=since, plan=Plan(groups=3))
    found = report.goodput
    assert found.wall_s >= 0.0
    for group, spans in found.spans.items():
        assert all(span.phase in PHASES and span.end > span.begin for span in spans), (group, spans)
        edges = [0.0, *(span.end for span in spans)]
        assert [span.begin for span in spans] == edges[:-1], (group, spans)
        assert edges[-1] == pytest.approx(found.wall_s, abs=1e-6)
        assert math.fsum(found.seconds[group].values()) == pytest.approx(found.wall_s, abs=1e-6)
    for recovery in report.recoveries:
        assert all(part >= 0 for part in recovery.parts_s.values())
        if recovery.recovery_s is not None:
            assert math.fsum(recovery.parts_s.values()) == pytest.approx(recovery.recovery_s, abs=1e-6)
