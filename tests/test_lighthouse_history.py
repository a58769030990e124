"""The last hour as the live page tells it: lanes, discards, paces and words, from the lighthouse's events alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.run_folder import EventLog, read_events
from lighthouse import chronicle
from lighthouse.chronicle import read_tail
from lighthouse.history import HOUR_S, MARKS, MOVES, PACES, TEXT, TOLD, History, Lane
from lighthouse.live import _row, headline, waits


def quorum(t, step, members, *, healing=(), by=1, **more):
    lineage = f"{step}:5.{by}" if step else "0:0.0"
    named = {"lineage": lineage, "participants": list(members), "healing": list(healing), "kind": "train"}
    return {"t": t, "event": "quorum", "step": step, "reason": "why", **named, **more}


def confirmed(t, step, **more):
    return {"t": t, "event": "confirmed", "step": step, "lineage": f"{step}:5.1", "participants": ["g0"], **more}


def join(t, group, incarnation):
    return {"t": t, "event": "join", "group": group, "incarnation": incarnation}


def departure(t, group, incarnation, cause="killed", reason="signal 9"):
    who = {"group": group, "incarnation": incarnation}
    return {"t": t, "event": "departure", **who, "cause": cause, "reason": reason}


def taken(*events):
    history = History()
    for event in events:
        history.take(event)
    return history


def kinds(history):
    return [item[2] for item in history.whole().get("told", [])]


KILL = [
    join(1, "g0", 1),
    join(1, "g1", 1),
    quorum(2, 0, ["g0", "g1"]),
    confirmed(3, 1),
    quorum(3, 1, ["g0", "g1"]),
    departure(4, "g1", 1),
    quorum(4.1, 1, ["g0"]),
    join(5, "g1", 2),
    confirmed(6, 2),
    quorum(6, 2, ["g0", "g1"], healing=["g1"]),
    confirmed(7, 3),
    quorum(7, 3, ["g0", "g1"]),
]


def test_a_kill_a_heal_and_a_return_are_a_lane():
    history = taken(*KILL)
    lane = [(move[1], move[3], move[4]) for move in history.whole()["moves"] if move[2] == "g1"]
    assert lane == [
        (1, "starting", 1),
        (2, "training", 1),
        (4, "gone", 1),
        (5, "starting", 2),
        (6, "healing", 2),
        (7, "training", 2),
    ]
    assert kinds(history) == ["join", "join", "quorum", "departure", "discard", "quorum", "join", "heal", "back"]
    told = {item[2]: item[3:] for item in history.whole()["told"]}
    assert told["heal"][0] == "g1 heals from g0"
    assert told["back"][0] == "g1 is back and trains, at step 3"
    assert told["departure"] == ["g1.1 is gone: killed", "signal 9"]
    marks = [mark[1:4] for mark in history.whole()["marks"]]
    assert marks == [[4.0, "departure", "g1"], [4.1, "discard", None]]


def test_a_discard_names_who_was_lost_or_that_somebody_moved_on():
    def why(*events):
        (text,) = [item[4] for item in taken(*events).whole()["told"] if item[2] == "discard"]
        return text

    first = quorum(1, 4, ["g0", "g1"])
    assert why(first, departure(2, "g1", 1), quorum(3, 4, ["g0"])) == "g1.1 is gone: killed"
    assert why(first, quorum(3, 4, ["g0"]), departure(2, "g1", 1)) == "g1 was lost"  # its cause came late
    assert why(first, quorum(3, 4, ["g0", "g1"], healing=["g1"])) == "g1 was lost"
    assert why(first, quorum(3, 4, ["g0", "g1"])) == "a participant moved on without its commit"


@pytest.mark.parametrize(
    "events",
    [
        (quorum(1, 4, ["g0"]), confirmed(2, 5), quorum(2, 5, ["g0"])),
        (quorum(1, 4, ["g0"], kind="closing"), quorum(2, 4, ["g0"], kind="closing")),
        (quorum(1, 4, ["g0"]), quorum(2, 4, ["g0"], by=9)),  # another lineage of the same step: a rollback
    ],
    ids=["committed", "closing", "another lineage"],
)
def test_what_is_no_discard(events):
    assert "discard" not in kinds(taken(*events))


def test_a_cause_that_is_known_late_leaves_the_successors_lane():
    history = taken(*KILL[:5], join(4.1, "g1", 2), departure(4, "g1", 1))
    assert history.lanes["g1"].lane is Lane.STARTING
    assert [move[3] for move in history.whole()["moves"] if move[2] == "g1"] == [
        "starting", "training", "starting", "gone",
    ]  # fmt: skip


def test_a_refusal_is_told_and_leaves_the_lane_of_its_name_alone():
    """A second job's g1 was turned away: the run's g1 trains on."""
    lanes = taken(*KILL[:4]).whole()["moves"]
    history = taken(*KILL[:4], {"t": 4, "event": "refusal", "group": "g1", "incarnation": None, "reason": "run is 'b'"})
    assert history.whole()["moves"] == lanes
    assert history.whole()["told"][-1][2:] == ["refusal", "g1 was not let in", "run is 'b'"]


def test_a_restart_of_the_lighthouse_is_a_gap_in_every_lane():
    restart = {"t": 20, "event": "lighthouse", "epoch": 6}
    history = taken(*KILL, departure(8, "g1", 2), restart)
    assert (history.lanes["g0"].t, history.lanes["g0"].lane) == (8, Lane.UNSEEN)
    assert history.lanes["g1"].lane is Lane.GONE
    history.take(quorum(21, 3, ["g0"]))
    assert history.lanes["g0"].lane is Lane.TRAINING


def test_paces_count_steps_and_tokens_between_their_moments():
    history = taken(*(confirmed(float(t), t + 1, tokens=100 * (t + 1)) for t in range(12)))
    assert [pace[1:] for pace in history.whole()["paces"]] == [[0.0, 0, 0], [5.0, 5, 500], [10.0, 5, 500]]
    slow = taken(*(confirmed(20.0 * t, t + 1) for t in range(3)))
    assert [pace[1:] for pace in slow.whole()["paces"]] == [[0.0, 0, 0], [20.0, 1, None], [40.0, 1, None]]


def test_tokens_are_counted_anew_after_a_rollback():
    rollback = {"t": 6, "event": "rollback", "from": "9:5.1", "to": "2:5.1"}
    events = [confirmed(0, 1, tokens=10), confirmed(5, 2, tokens=20), rollback, confirmed(11, 3, tokens=15)]
    assert [pace[3] for pace in taken(*events).whole()["paces"]] == [0, 10, None]


def test_it_forgets_after_an_hour_and_remembers_how_the_lanes_began():
    history = taken(*KILL, departure(8, "g1", 2), quorum(9, 4, ["g0"]), confirmed(HOUR_S + 100, 5))
    assert history.whole()["base"] == {"g0": ["training", 1]}
    assert not {"moves", "marks", "told"} & set(history.whole())
    assert set(history.lanes) == {"g0"}, "who was gone for the whole hour has no lane"


def test_it_is_bounded():
    history = History()
    for i in range(3 * MOVES):
        history.take(join(i / 100, f"g{i % 7}", i))
        history.take(departure(i / 100, f"g{i % 7}", i, reason="x" * 10_000))
        history.take(confirmed(6.0 * i / 100, i))
    whole = history.whole()
    assert [len(whole[name]) for name in ("moves", "marks", "told")] == [MOVES, MARKS, TOLD]
    assert len(whole["paces"]) <= PACES
    assert max(len(item[4]) for item in whole["told"]) == TEXT
    assert len(json.dumps(whole)) < 1_000_000


@given(
    st.lists(st.tuples(st.sampled_from(KILL), st.dictionaries(st.sampled_from(list(KILL[2])), st.none())), max_size=20)
)
def test_damaged_events_are_passed_over(damaged):
    history = taken(*({**event, **holes} for event, holes in damaged), *KILL)
    assert history.lanes["g1"].lane is Lane.TRAINING


@given(st.lists(st.integers(0, len(KILL)), max_size=4))
def test_news_are_what_is_missing(cuts):
    history, parts, begin = History(), [], 0
    for cut in [*sorted(cuts), len(KILL)]:
        known = history.n
        for event in KILL[begin:cut]:
            history.take(event)
        parts.append(history.since(known))
        begin = max(begin, cut)
    for name in ("moves", "marks", "paces", "told"):
        assert [item for part in parts for item in part.get(name, [])] == history.whole()[name]


@pytest.mark.parametrize("block", [7, 64, 1 << 18])
def test_a_log_is_read_back_from_its_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr(chronicle, "_BLOCK", block)
    path, moment = tmp_path / "log.jsonl", iter(range(0, 10_000, 10))
    log = EventLog(path, group=None, clock=lambda: float(next(moment)))
    for i in range(50):
        log("confirmed", step=i)
    log.close()
    with path.open("a") as file:
        file.write("nonsense\n{}\n")
    size = path.stat().st_size
    with path.open("a") as file:
        file.write('{"t": 9999, "event": "later"}\n')
    expected = [event for event in read_events(path) if 200 <= event["t"] < 9999]
    assert list(read_tail(path, size=size, since=200.0))[::-1] == expected
    assert len(list(read_tail(path, size=size, since=-1.0))) == 50


def status(**changes):
    def group(name, **more):
        return {"group": name, "alive": True, **more}

    usual = {
        "run": "test",
        "ended": None,
        "steps": 100,
        "groups_configured": 2,
        "waits_for": "g1 has not asked",
        "seconds_waited": 0.1,
        "quorum": {"participants": ["g0", "g1"], "healing": [], "step": 7, "attempt": (5 << 32) + 9},
        "groups": [group("g0"), group("g1")],
    }
    return {**usual, **changes}


def with_quorum(*participants, healing=()):
    return {**status()["quorum"], "participants": list(participants), "healing": list(healing)}


@pytest.mark.parametrize(
    ("changes", "tone", "text"),
    [
        ({}, "good", "2 of 2 groups train · step 7 of 100 · attempt 9"),
        ({"quorum": with_quorum("g0")}, "less", "1 of 2 groups trains · step 7 of 100 · attempt 9"),
        (
            {"quorum": with_quorum("g0", "g1", healing=["g1"])},
            "less",
            "1 of 2 groups trains · g1 heals · step 7 of 100 · attempt 9",
        ),
        ({"seconds_waited": 3.0}, "wait", "2 of 2 groups train · step 7 of 100 · attempt 9"),
        ({"quorum": None}, "wait", "2 of 2 groups alive, no quorum yet"),
        ({"groups": []}, "wait", "No group is alive"),
        ({"run": None}, "wait", "No group has joined yet"),
        ({"ended": "100:5.1"}, "done", "The run has ended at step 100"),
    ],
    ids=str,
)
def test_the_run_in_one_line(changes, tone, text):
    assert headline(status(**changes)) == (tone, text)


def test_a_wait_is_told_when_it_is_long():
    assert waits(status()) == ""
    assert waits(status(seconds_waited=3.0)) == "g1 has not asked"
    assert waits(status(quorum=None)) == "g1 has not asked"
    assert waits(status(seconds_waited=3.0, ended="100:5.1")) == ""


@pytest.mark.parametrize(
    ("changes", "lane"),
    [
        ({"ended": "100:5.1"}, "done"),
        ({"ended": "100:5.1", "quorum": None}, "done"),
        ({"ended": "100:5.1", "quorum": with_quorum("g0")}, "gone"),
        ({}, "gone"),
    ],
    ids=str,
)
def test_only_who_saw_the_end_is_done(changes, lane):
    gone = {"incarnation": 1, "alive": False, "step": 7, "seconds_silent": None, "host": "h", "ranks": [1]}
    assert _row({"group": "g1", **gone}, status(**changes), Lane.GONE)["lane"] == lane
