"""Recoveries, reports and the live lines, from logs made by hand."""

from __future__ import annotations

import json

import pytest

from ops.__main__ import main
from ops.launch.summary import summarise
from ops.live import Narrator
from ops.recovery import recoveries
from ops.report import read_report
from ops.tail import Tail, Tails
from tests.support.logs import commit, confirmed, logs, write

BOTH = {"g0": [0, 1], "g1": [2, 3]}


def quorum(t: float, participants: list[str], healing: tuple[str, ...] = ()) -> dict:
    seen = {"participants": participants, "healing": list(healing), "quorum_id": len(participants)}
    return {"t": t, "event": "quorum", "step": int(t), **seen}


def story() -> dict[str, list[dict]]:
    """g1 is killed at 2.1 inside an attempt, g0 discards it, goes on alone at 2.25, g1 heals in step 4, works in 5."""
    alone = commit(3, {"g0": [8, 9, 10, 11]}, t=3.0, digest="d3")
    healing = commit(4, {"g0": [12, 13, 14, 15], "g1": []}, t=4.0, healing=["g1"], digest="d4")
    joint = commit(5, {"g0": [16, 17], "g1": [18, 19]}, t=5.0, digest="d5")
    first = [
        commit(s, {"g0": [4 * s - 4, 4 * s - 3], "g1": [4 * s - 2, 4 * s - 1]}, digest=f"d{s}", incarnation=1)
        for s in (1, 2)
    ]
    return {
        "lighthouse": [confirmed(s) for s in range(1, 6)],
        "launcher": [
            {"t": 2.1, "event": "fault", "group": "g1", "action": "kill", "failpoint": "every rank"},
            {"t": 2.12, "event": "exit", "group": "g1", "incarnation": 1, "code": -9, "reason": "killed by SIGKILL; x"},
            {"t": 2.2, "event": "restart", "group": "g1", "incarnation": 1, "code": -9, "recovery_s": 2.9},
            {"t": 6.0, "event": "exit", "group": "g1", "incarnation": 2, "code": 0, "reason": "done"},
        ],
        "g0": [
            quorum(0.5, ["g0", "g1"]),
            *first,
            quorum(2.05, ["g0", "g1"]),
            {"t": 2.2, "event": "discard", "step": 2, "attempt": 7, "reason": "peer_lost"},
            quorum(2.25, ["g0"]),
            alone,
            healing,
            joint,
        ],
        "g1": [
            quorum(2.05, ["g0", "g1"]),
            *first,
            {"t": 3.5, "event": "heal", "step": 3, "sources": ["g0"], "bytes": 1000, "seconds": 0.05},
            healing | {"t": 4.01, "incarnation": 2},
            joint | {"t": 5.01, "incarnation": 2},
        ],
    }


def test_a_kill_and_its_parts():
    (found,) = recoveries(logs(**story()))
    assert (found.group, found.code, found.injected) == ("g1", -9, True)
    assert found.stall_s == pytest.approx(0.15)
    assert found.recovery_s == pytest.approx(2.91)  # step 4 was healed with an empty share: that is not yet recovery
    assert (found.heal_sources, found.heal_bytes, found.heal_s) == (("g0",), 1000, 0.05)


def test_an_attempt_that_still_counts_on_the_dead_ends_no_stall():
    told = story()
    told["g0"].insert(4, quorum(2.11, ["g0", "g1"]))
    (found,) = recoveries(logs(**told))
    assert found.stall_s == pytest.approx(0.15)


def test_work_that_does_not_need_the_dead_is_no_stall():
    told = story()
    discard = next(event for event in told["g0"] if event["event"] == "discard")
    discard["waited_s"] = 0.03
    (found,) = recoveries(logs(**told))
    assert found.stall_s == pytest.approx(0.08)


def test_a_survivor_that_asks_late_waits_from_then():
    told = story()
    told["g0"] = [event for event in told["g0"] if event["event"] != "discard"]
    told["g0"][-4]["seconds"] = 0.02  # its first quorum without the dead: until it asked it did work of its own
    (found,) = recoveries(logs(**told))
    assert found.stall_s == pytest.approx(0.02)


def test_a_death_without_a_successor_has_no_recovery():
    told = story()
    told["g1"] = told["g1"][:3]
    (found,) = recoveries(logs(**told))
    assert found.recovery_s is None
    assert found.heal_sources == ()


def test_a_share_of_the_successors_successor_does_not_count():
    told = story()
    told["launcher"].append({"t": 4.5, "event": "exit", "group": "g1", "incarnation": 2, "code": 7, "reason": "exit 7"})
    first, second = recoveries(logs(**told))
    assert first.recovery_s is None
    assert second.recovery_s == pytest.approx(0.51)
    assert not second.injected


def test_report_counts_attempts_once():
    told = story()
    told["g1"].append({"t": 2.3, "event": "discard", "step": 2, "attempt": 7, "reason": "collective_error"})
    report = read_report(logs(**told))
    assert (report.steps, report.commits, dict(report.discards)) == (5, 5, {"peer_lost": 1})
    assert report.ratios.commit_ratio == pytest.approx(5 / 6)
    assert report.tokens_per_s == pytest.approx(4 * 16 / 4.0)
    assert (report.loss_first, report.loss_last) == (9.0, 5.0)
    assert (report.digest, report.digests_agree) == ("d5", True)


def test_report_since_a_moment_speaks_of_that_launch_alone():
    report = read_report(logs(**story()), since=3.5)
    assert (report.steps, report.commits, report.recoveries, report.discards) == (5, 2, (), {})
    assert report.loss_first == 9.0


def test_launch_object_has_the_fields_of_the_contract(tmp_path):
    for writer, events in story().items():
        write(tmp_path / "run", writer, events)
        write(tmp_path / "run/undisturbed", writer, events)
    result = summarise(tmp_path / "run", code=0, reason="done", since=0, undisturbed=tmp_path / "run/undisturbed")
    assert result.code == 0
    wanted = {"exit", "run", "steps", "commits", "discards", "loss_first", "loss_last", "kills", "ledger"}
    assert wanted | {"digests_agree", "digest", "undisturbed_digest"} <= set(result.data)
    assert {"group", "stall_s", "recovery_s", "heal_sources", "heal_bytes", "heal_s"} <= set(result.data["kills"][0])
    assert result.data["digests_agree"] is True
    json.dumps(result.data)


def test_another_digest_undisturbed_fails_the_launch(tmp_path):
    for writer, events in story().items():
        write(tmp_path / "run", writer, events)
        other = [e | {"digest": "other"} if e.get("digest") == "d5" else e for e in events]
        write(tmp_path / "other", writer, other)
    result = summarise(tmp_path / "run", code=0, reason="done", since=0, undisturbed=tmp_path / "other")
    assert (result.code, result.data["digests_agree"]) == (1, False)
    assert "NOT THE SAME" in result.text


def test_a_joined_run_is_not_judged_without_the_lighthouses_log(tmp_path):
    write(tmp_path, "g1", story()["g1"])
    result = summarise(tmp_path, code=0, reason="done", since=0)
    assert (result.code, result.data["ledger"]) == (0, None)


def test_a_broken_ledger_fails_the_launch(tmp_path):
    for writer, events in story().items():
        write(tmp_path, writer, [e for e in events if e.get("step") != 3 or e["event"] != "commit"])
    assert summarise(tmp_path, code=0, reason="done", since=0).code == 1
    assert summarise(tmp_path, code=75, reason="drained", since=0).code == 75


def test_report_command(tmp_path, capfd):
    for writer, events in story().items():
        write(tmp_path, writer, events)
    assert main(["report", str(tmp_path), "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["recoveries"][0]["recovery_s"] == pytest.approx(2.91)
    assert main(["report", str(tmp_path)]) == 0
    assert "peer_lost 1" in capfd.readouterr().out


def test_live_lines_tell_each_step_once_and_what_happened():
    narrator = Narrator(steps=5, every=1)
    told = story()
    pairs = [(writer, e) for writer, events in told.items() for e in events if writer != "lighthouse"]
    lines = [found.text for w, e in sorted(pairs, key=lambda p: p[1]["t"]) if (found := narrator.take(w, e))]
    assert [line.split()[1] for line in lines] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert "loss  9.000" in lines[0]
    assert "32 tok/s" in lines[0]
    assert "quorum g0+g1" in lines[0]
    assert "discarded an attempt (peer_lost)" in lines[2]
    assert "g1(heals)" in lines[3]
    assert "healed from g0: 1.0 kB" in lines[3]


def test_live_lines_keep_quiet_between_but_not_about_failures():
    narrator = Narrator(steps=100, every=10)
    events = [("g0", commit(s, BOTH)) for s in (1, 2, 3)]
    events.insert(2, ("g0", {"t": 2.5, "event": "discard", "reason": "peer_lost"}))
    lines = [found.step for w, e in events if (found := narrator.take(w, e))]
    assert lines == [1, 3]


def test_the_return_of_a_group_is_told_when_its_successor_works():
    narrator = Narrator(steps=9, every=1)
    narrator.take("launcher", {"t": 1.0, "event": "exit", "group": "g1", "incarnation": 1, "code": -9})
    late = narrator.take("g1", commit(2, BOTH, incarnation=1))
    assert late is not None
    assert "is back" not in late.text
    assert "g1 is back with a share" in narrator.take("g1", commit(3, BOTH, incarnation=2)).text


def test_tail_sees_whole_lines_once(tmp_path):
    path = tmp_path / "g0.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"t": 1, "event": "a"}\n{"t": 2, "eve')
    assert [e["event"] for e in tail.read()] == ["a"]
    with path.open("a") as file:
        file.write('nt": "b"}\n{"torn\n{"t": "x", "event": "d"}\n{"t": 3, "event": "c"}\n[]\n')
    assert [e["event"] for e in tail.read()] == ["b", "c"]
    assert tail.read() == []


def test_tails_start_at_the_end_of_old_logs_and_at_the_start_of_new_ones(tmp_path):
    (tmp_path / "g0.jsonl").write_text('{"event": "old", "t": 1}\n')
    tails = Tails(tmp_path, from_end=True)
    (tmp_path / "g1.jsonl").write_text('{"event": "new", "t": 3}\n')
    with (tmp_path / "g0.jsonl").open("a") as file:
        file.write('{"event": "fresh", "t": 2}\n')
    assert [(w, e["event"]) for w, e in tails.read()] == [("g0", "fresh"), ("g1", "new")]
