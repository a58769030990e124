"""What benchmarks make of what they measured: pure functions, over numbers and event logs made by hand."""

from __future__ import annotations

import re

import pytest

from ops.__main__ import main
from ops.bench.figures import machine, percentile, ratio, spread, spread_text, tail
from ops.bench.lighthouse_command import Load, extra_figures, figures
from ops.bench.recovery import PARTS, Costs, Fault, Measured, confirmed_after_burial, parts_of, recovery_of
from ops.bench.recovery import figures as recovery_figures
from ops.bench.recovery_command import blocks
from ops.bench.stock import stall_of, trains_together
from ops.bench.transfer_command import LEGEND, WAYS, Taken
from ops.bench.transfer_command import figures as transfer_figures
from ops.bench.transfer_command import text_of as transfer_text
from ops.bench.watch import commits_together
from tests.support.logs import commit, confirmed, logs


def test_a_spread_has_the_median_and_both_ends():
    assert spread([3.0, 1.0, 2.0, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0, "n": 4}
    assert spread([7.0]) == {"median": 7.0, "min": 7.0, "max": 7.0, "n": 1}
    assert spread([]) is None
    assert spread_text(None) == "not measured"


def test_percentiles_lie_between_neighbours():
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)
    assert tail(list(map(float, range(101)))) == {"p50": 50.0, "p99": 99.0, "n": 101}
    assert tail([]) is None


def test_a_ratio_is_the_references_median_over_ours():
    assert ratio(spread([4.0, 6.0]), spread([0.5])) == pytest.approx(10.0)
    assert ratio(None, spread([0.5])) is None
    assert ratio(spread([1.0]), spread([0.0])) is None


def test_the_machine_is_named():
    found = machine()
    assert found["cores"] >= 1
    assert {"cpu", "memory_bytes", "torch", "torchft", "load_1m"} <= set(found)


def test_the_gateways_share_and_what_it_adds_to_a_quorum():
    gateway = Load(quorum_s=[0.1, 0.3], rounds_s=[0.3], cpu_s=2.0, wall_s=4.0)
    found = figures(gateway, Load())
    assert found["cpu_share"] == 0.5
    assert found["quorum_s"]["p50"] == pytest.approx(0.2)
    assert (found["engine_quorum_s"], found["engine_cpu_share"]) == (None, None)
    extra = extra_figures([0.003, 0.005, 0.004], [0.001, 0.002, 0.002])
    assert extra["gateway_extra_s"]["median"] == pytest.approx(0.002)


def test_blocks_share_the_kills():
    assert blocks(10) == [5, 5]
    assert blocks(3) == [2, 1]
    assert blocks(1) == [1]


# ---- ours ------------------------------------------------------------------------------------------------------------

FAULT = Fault(group="g1", incarnation=1, t=10.0)


def killed(**changes):
    start = {"t": 11.0, "event": "start", "group": "g1", "incarnation": 2, "began_t": 10.25}
    start |= {"parts_s": {"join": 0.05, "process_groups": 0.1, "model": 0.4, "rehearse": 0.125}}
    told = {
        "launcher": [{"t": 10.125, "event": "exit", "group": "g1", "incarnation": 1, "code": -9}],
        "g1": [
            commit(3, {"g0": [0], "g1": [1]}, t=9.0, incarnation=1),
            start,
            {"t": 11.25, "event": "heal", "seconds": 0.0625},
            commit(6, {"g0": [0, 1], "g1": []}, t=11.5, incarnation=2),
            commit(7, {"g0": [0], "g1": [1]}, t=12.0, incarnation=2),
        ],
    }
    return logs([], **{**told, **changes})


def test_the_parts_of_a_recovery_add_up_to_it():
    assert recovery_of(killed(), FAULT) == 2.0
    parts = parts_of(killed(), FAULT)
    assert parts == {
        "notice": 0.125,
        "fork": 0.125,
        "process_groups": pytest.approx(0.225),
        "model": 0.4,
        "rehearse": 0.125,
        "heal": 0.0625,
        "first_share": 0.9375,
    }
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(2.0)


def test_a_group_that_never_came_back_has_no_recovery():
    assert recovery_of(killed(g1=[]), FAULT) is None
    assert parts_of(killed(g1=[]), FAULT) is None


def test_figures_of_what_was_not_measured_are_null():
    found = Measured(ours=Costs(stalls=[0.1, 0.3], recoveries=[2.0]), stock=Costs(stalls=[4.0]))
    data = recovery_figures(found)
    assert data["stall_s"]["median"] == pytest.approx(0.2)
    assert data["stall_ratio"] == pytest.approx(20.0)
    assert (data["recovery_ratio"], data["hang_stall_s"], data["recovery_parts_s"]) == (None, None, None)


def test_a_commit_that_only_the_buried_made_must_not_be_confirmed():
    lighthouse = [
        {"t": 5.5, "event": "departure", "group": "g1", "incarnation": 1, "cause": "hung"},
        *(confirmed(step) for step in (4, 5, 6)),
    ]
    both = {"g0": [0], "g1": [1]}
    groups = {
        "g0": [commit(4, both), commit(5, both, t=5.2)],
        "g1": [commit(4, both, incarnation=1), commit(5, both, t=5.6, incarnation=1)],
    }
    fault = Fault(group="g1", incarnation=1, t=5.0)
    assert confirmed_after_burial(logs(lighthouse, **groups), [fault]) == 0
    groups["g1"].append(commit(6, both, t=6.1, incarnation=1))
    assert confirmed_after_burial(logs(lighthouse, **groups), [fault]) == 1


def test_groups_train_together_once_all_share_what_all_commit():
    both = {"g0": [0], "g1": [1]}
    told = {"g0": [commit(s, both) for s in (1, 2, 3)], "g1": [commit(s, both) for s in (1, 2)]}
    assert commits_together(logs([], **told), ("g0", "g1"), after=0.5, count=2)
    assert not commits_together(logs([], **told), ("g0", "g1"), after=1.0, count=2)
    told["g1"] = [commit(s, {"g0": [0], "g1": []}) for s in (1, 2)]
    assert not commits_together(logs([], **told), ("g0", "g1"), after=0.5, count=2)


# ---- stock torchft ---------------------------------------------------------------------------------------------------


def survivor(*events):
    return logs([], g0=events, g1=[])


def attempt(t, outcome, *, began_t, quorum_t, **more):
    return {"t": t, "event": outcome, "began_t": began_t, "quorum_t": quorum_t, **more}


def test_a_survivor_of_stock_torchft_waits_from_the_failed_reduce_to_its_next_quorum():
    told = survivor(
        attempt(9.9, "commit", began_t=9.5, quorum_t=9.51),
        attempt(10.3, "discard", began_t=9.9, quorum_t=9.91, reduce_t=10.2),
        attempt(15.5, "commit", began_t=10.3, quorum_t=15.0),
    )
    assert stall_of(told, group="g1", t=10.0) == pytest.approx(4.8)


def test_a_survivor_that_asks_after_the_kill_waits_from_then():
    told = survivor(
        attempt(10.1, "commit", began_t=9.5, quorum_t=9.51),  # the sums were there before the kill
        attempt(15.5, "commit", began_t=10.5, quorum_t=15.0),
    )
    assert stall_of(told, group="g1", t=10.0) == pytest.approx(4.5)


def test_a_survivor_that_never_goes_on_has_no_stall_yet():
    assert stall_of(survivor(attempt(9.9, "commit", began_t=9.5, quorum_t=9.6)), group="g1", t=10.0) is None


def test_stock_groups_train_together_once_each_has_a_share_and_all_take_part():
    joint = {"t": 2.0, "event": "commit", "participants": 2, "shares": {"g0": [1]}}
    assert trains_together(logs([], g0=[joint], g1=[joint]), ("g0", "g1"), after=1.0, count=1)
    assert not trains_together(logs([], g0=[joint], g1=[joint | {"shares": {}}]), ("g0", "g1"), after=1.0, count=1)
    assert not trains_together(logs([], g0=[joint | {"participants": 1}], g1=[joint]), ("g0", "g1"), after=1, count=1)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "no command is called 'bench nonsense'; there are"),
        (["overhead"], "`phalanx bench overhead` does not exist yet"),
        (["lighthouse", "--groups", "0"], "must be greater than 0"),
        (["checkpoint", "--cycles", "0"], "--cycles must be at least 1"),
        (["recovery", "--only", "kills,naps"], "--only naps: expected some of kills, stock"),
        (["recovery", "--training.setps", "3"], "did you mean training.steps"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, said, capfd):
    assert main(["bench", *words]) == 2
    assert said in capfd.readouterr().err


def test_figures_of_a_transfer_compare_with_the_best_setting_of_the_other():
    speeds = {"ours_1": 3.0, "ours_2": 4.0, "http_0": 1.0, "http_8": 2.0, "raw": 3.2}
    taken = {name: Taken(gb_per_s=[speeds.get(name, 1.0)] * 3, extra_bytes=5) for name in WAYS}
    one, two = transfer_figures(100, taken)
    assert (one["bytes"], one["sources"], two["sources"]) == (100, 1, 2)
    assert one["gb_per_s"] == {"median": 3.0, "min": 3.0, "max": 3.0, "n": 3}
    assert (one["http_transport_chunks"], one["http_transport_gb_per_s"]["median"]) == (8, 2.0)
    assert (one["http_transport_ratio"], two["http_transport_ratio"]) == (1.5, 2.0)
    assert one["raw_ratio"] == pytest.approx(3.0 / 3.2)
    assert two["one_source_ratio"] == pytest.approx(4 / 3)
    assert one["receiver_extra_share"] == 0.05
    told = transfer_text({"sizes": [one, two]})
    assert "from 1 source: " in told
    assert "from 2 sources: " in told
    assert all("GB/s" in line for line in told.splitlines())


def test_every_name_in_the_lines_of_a_transfer_is_explained():
    assert {name.partition("_")[0] for name in WAYS} <= set(re.findall(r"(\w+?)(?:_N)?:", LEGEND))
