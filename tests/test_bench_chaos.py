"""Committed work under failures: the trace, the final history, what it comes to, groups that keep to their cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.__main__ import main
from ops.bench.chaos_command import sizes, text_of
from ops.bench.children import end, tree
from ops.bench.committed import (
    Lived,
    Made,
    Share,
    calm_rate,
    ceiling,
    committed_rate,
    figures,
    final_history,
    our_history,
    outages,
    save_interval,
    told_history,
)
from ops.bench.pin import cores_of, equal_shares, on_cores, strays, words_of
from ops.bench.trace import Kill, Played, failure_trace, play
from tests.support.lighthouse import ROOT, wait_until
from tests.support.logs import commit, confirmed, lineage, logs

GROUPS = ("g0", "g1")


# ---- the trace -------------------------------------------------------------------------------------------------------


def test_the_trace_is_a_function_of_seed_rate_and_length():
    once, again = (failure_trace(seed=3, mtbf_s=15, wall_s=600, groups=GROUPS) for _ in range(2))
    assert once == again
    assert once != failure_trace(seed=4, mtbf_s=15, wall_s=600, groups=GROUPS)
    assert {kill.group for kill in once} == set(GROUPS)
    assert failure_trace(seed=3, mtbf_s=15, wall_s=300, groups=GROUPS) == once[:20], "a shorter one is its beginning"


@pytest.mark.parametrize(("wall_s", "mtbf_s", "kills"), [(600, 15, 40), (600, 5, 120), (40, 15, 3), (5, 15, 0)])
def test_there_is_one_kill_in_each_stretch(wall_s, mtbf_s, kills):
    found = failure_trace(seed=0, mtbf_s=mtbf_s, wall_s=wall_s, groups=GROUPS)
    assert abs(len(found) - kills) <= (wall_s % mtbf_s > 0)
    for stretch, kill in enumerate(found):
        assert 0.4 * mtbf_s <= kill.t - stretch * mtbf_s <= 0.6 * mtbf_s
        assert kill.t < wall_s


def test_a_trace_is_played_at_its_moments():
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    def strike(group):
        now[0] += 0.25  # a kill takes a moment
        return now[0]

    trace = (Kill(t=1.0, group="g1"), Kill(t=1.1, group="g0"))
    played = play(trace, wall_s=5.0, strike=strike, clock=lambda: now[0], sleep=sleep)
    assert played == Played(begin=100.0, end=105.0, kills=(Kill(t=101.25, group="g1"), Kill(t=101.5, group="g0")))
    assert now[0] == pytest.approx(105.0)


# ---- the final history -----------------------------------------------------------------------------------------------


def made(t, step, maker=1, tokens=10):
    return Made(t=t, step=step, maker=maker, tokens=tokens)


def test_work_that_was_rolled_back_does_not_count():
    before = [made(1, 1), made(2, 2), made(3, 3)]
    after = [made(8, 2, maker=2), made(9, 3, maker=2)]
    assert final_history([*before, *after]) == [before[0], *after]


def test_groups_that_tell_of_one_commit_count_once():
    assert final_history([made(1, 1), made(1.01, 1), made(2, 2), made(2.01, 2)]) == [made(1, 1), made(2, 2)]


def test_all_of_a_history_can_be_lost():
    told = [
        {"t": t, "event": "commit", "step": step, "maker": maker, "step_tokens": 10}
        for t, step, maker in ((1, 1, 7), (2, 2, 7), (9, 1, 8))
    ]
    assert told_history(logs([], g0=told)) == ([made(9, 1, maker=8)], 2)


def test_only_what_was_confirmed_counts():
    both = {"g0": [0], "g1": [1]}
    told = [commit(step, both, samples=4) for step in (1, 2, 3)]
    rolled_back = [confirmed(1), confirmed(2), {"t": 2.6, "event": "rollback", "to": lineage(1)}]
    history, lost = our_history(logs(rolled_back, g0=told), seq_len=5)
    assert [(one.step, one.tokens) for one in history] == [(1, 20)]
    assert lost == 1, "step 3 was never confirmed, step 2 was taken back"


# ---- what it comes to ------------------------------------------------------------------------------------------------


def test_rates():
    history = [made(t, t) for t in range(1, 11)]
    assert calm_rate(history, 2, 5) == 10.0
    assert calm_rate(history, 2, 2.5) == 0.0, "of one commit nothing can be said"
    assert committed_rate(history, Played(begin=2, end=6, kills=())) == 10.0, "steps 3 to 6"


def share(t, life):
    return Share(t=t, life=life)


def test_a_group_is_gone_from_its_kill_to_its_next_share():
    shares = {"g0": [share(1, 1), share(2, 1), share(2.1, 1), share(5, 2), share(6, 2)], "g1": [share(1, 1)]}
    kills = [Kill(t=2.05, group="g0"), Kill(t=7, group="g0"), Kill(t=8, group="g1")]
    found = outages(kills, shares)
    assert [(one.group, one.begin, one.back) for one in found] == [("g0", 2.05, 5), ("g0", 7, None), ("g1", 8, None)]
    played = Played(begin=0, end=10, kills=tuple(kills))
    assert ceiling(found, groups=2, played=played) == pytest.approx(1 - (2.95 + 3 + 2) / 20)


def test_a_kill_of_a_group_that_is_not_back_prolongs_its_outage():
    shares = {"g0": [share(1, 1), share(9, 3)]}
    found = outages([Kill(t=2, group="g0"), Kill(t=4, group="g0"), Kill(t=9.5, group="g0")], shares)
    assert [(one.begin, one.back) for one in found] == [(2, 9), (9.5, None)]


def test_saves_are_about_the_best_interval_apart():
    assert save_interval(save_s=0.12, mtbf_s=15, step_s=0.3) == 6  # sqrt(2 x 0.12 x 15) = 1.9 s
    assert save_interval(save_s=1e-6, mtbf_s=5, step_s=0.3) == 1


def test_the_figures_of_a_system():
    history = [made(t, t) for t in (1, 2, 3, 4, 6, 8)]
    played = Played(begin=4, end=8, kills=(Kill(t=4.5, group="g0"),))
    lived = Lived(
        calm=(1, 4),
        played=played,
        history=history,
        rolled_back=1,
        shares={"g0": [share(4, 1), share(6.5, 2)], "g1": [share(4, 1)]},
    )
    found = figures(lived, native_rate=20.0)
    assert found["committed_ratio"] == pytest.approx(0.5)
    assert found["native_ratio"] == pytest.approx(0.25)
    assert found["ceiling_ratio"] == pytest.approx(0.75)
    assert (found["steps"], found["kills"], found["rolled_back_steps"], found["never_back"]) == (2, 1, 1, 0)
    assert found["recovery_s"]["median"] == 2.0
    assert found["lost_s"] == {"capacity": 1.0, "in_flight": 0.5, "rest": 0.5}, "half of four seconds"
    data = {"phalanx": found, "stock_torchft": None, "restart": None, "mtbf_s": 5, "wall_s": 4}
    told = text_of(data | {"native_tokens_per_s": 20.0, "cores": None, "save_interval_steps": 6})
    assert "phalanx" in told
    assert "50.0%" in told
    assert "stock_torchft" not in told


def test_nothing_is_said_of_what_never_committed():
    played = Played(begin=4, end=8, kills=())
    found = figures(Lived(calm=(1, 4), played=played, history=[], rolled_back=0, shares={"g0": []}), native_rate=0.0)
    assert (found["committed_ratio"], found["native_ratio"], found["recovery_s"]) == (None, None, None)


# ---- cores -----------------------------------------------------------------------------------------------------------


def test_shares_are_equal_and_whole():
    assert equal_shares([4, 5, 6, 7, 8], GROUPS) == {"g0": {4, 5}, "g1": {6, 7}}
    with pytest.raises(ValueError, match="3 groups cannot each have a core"):
        equal_shares([0, 1], ("g0", "g1", "g2"))


def test_shares_go_over_a_command_line():
    shares = equal_shares([0, 1, 2, 3], GROUPS)
    words = words_of(shares, GROUPS)
    assert [cores_of(words, place) for place in (0, 1)] == [shares["g0"], shares["g1"]]
    assert cores_of(words_of(None, GROUPS), 1) is None


THREADS = "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(3)]"


@pytest.fixture
def core():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core cannot be left")
    return frozenset(cores[-1:])


def test_all_that_is_started_there_keeps_to_its_cores(core):
    with on_cores(core):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import subprocess, sys; {THREADS}; subprocess.call([sys.executable, '-c', {THREADS!r}])",
            ]
        )
    try:
        pids = wait_until(
            lambda: len(found := tree(process.pid)) == 2 and all(len(tasks(pid)) == 4 for pid in found) and found
        )
        assert strays(pids, core) == []
        assert os.sched_getaffinity(0) > core, "whoever starts it goes where it likes afterwards"
        thread = max(tasks(pids[1]))
        os.sched_setaffinity(thread, os.sched_getaffinity(0))
        assert strays(pids, core) == [(pids[1], thread)]
    finally:
        end(process)


def tasks(pid):
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def test_a_rank_of_all_groups_torchrun_goes_to_its_groups_cores(core):
    words = words_of({"g0": frozenset(os.sched_getaffinity(0)), "g1": core}, GROUPS)
    said = subprocess.run(
        [sys.executable, "-m", "ops.bench.pin", words, "2", "tests.support.cores"],
        cwd=ROOT,
        env={**os.environ, "LOCAL_RANK": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout.split() == [str(c) for c in core]


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mtbf-s", "0"], "must be greater than 0"),
        (["--only", "phalanx,naps"], "--only naps: expected some of phalanx, stock_torchft, restart"),
        (["--training.setps", "3"], "did you mean training.steps"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, said, capfd):
    assert main(["bench", "chaos", *words]) == 2
    assert said in capfd.readouterr().err


def test_the_sizes_are_those_of_the_shipped_config_only():
    assert "--training.seq_len" in sizes("bench", 2)
    assert "--training.seq_len" not in sizes("my.toml", 2)


@pytest.mark.parametrize("words", [["--mtbf-s", "nan"], ["--wall-s", "inf"], ["--calm-s", "nan"], ["--wall-s", "1"]])
def test_lengths_that_make_no_trace_are_refused(words, capsys):
    assert main(["bench", "chaos", *words]) == 2
    assert words[0] in capsys.readouterr().err
