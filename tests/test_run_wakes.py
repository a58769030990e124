"""Who is stopped, buried and woken again: it is refused, ends with 7, and nothing of it enters the history.

Collective timeouts are 60 s, so only the lighthouse can have ended a wait.
"""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest

from configs.words import Exit
from lighthouse.state import Journal, Stored
from tests.support.field import Field, never_confirmed, one_history, wait_until

MODES = {
    "exact": {},
    "fp32": {"fault_tolerance__reduction": "fp32"},
    "per_group": {"fault_tolerance__reduction": "fp32", "fault_tolerance__batch": "per_group"},
}
LATER = pytest.mark.long


@pytest.mark.parametrize(
    ("mode", "ranks", "where"),
    [
        ("exact", (0, 1), "reduce"),
        ("per_group", (0,), "reduce"),
        pytest.param("exact", (0,), "vote_after", marks=LATER),
        pytest.param("exact", (1,), "optimizer", marks=LATER),
        pytest.param("fp32", (0, 1), "summary", marks=LATER),
        pytest.param("fp32", (0,), "backward", marks=LATER),
        pytest.param("fp32", (1,), "reduce", marks=LATER),
        pytest.param("per_group", (0, 1), "vote_before", marks=LATER),
        pytest.param("per_group", (1,), "reduce", marks=LATER),
    ],
)
def test_a_group_that_wakes_after_its_burial_is_never_confirmed(rig, mode, ranks, where):
    """The whole group or one rank of it, in every mode: exact bits could hide a fault of the protocol."""
    with Field(rig, f"wakes-{mode}-{len(ranks)}-{ranks[0]}-{where}", ranks=2, **MODES[mode]) as field:
        field.start("g0")
        field.start("g1", points=[f"g1:{where}@6#{rank}:stop" for rank in ranks])
        stopped = field.wait("g1", "fault")
        gone = field.wait_gone("g1")
        assert gone["cause"] in ("expired", "hung")
        assert gone["t"] - stopped["t"] < 15, "long before the collective's 60 s"
        alone = field.wait_commit("g0", after=gone["t"], alone=True)
        field.wait_commit("g0", step=alone["step"] + 4)
        print(f"\nfrom the stop to the survivor's next commit: {alone['t'] - stopped['t']:.2f} s, detection 1 s")
        woken = time.time()
        if field.events("launcher", "exit"):  # its fellow had heard, and left
            assert ranks == (1,)
        else:
            field.signal("g1", signal.SIGCONT)
        assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
        field.start("g1")
        field.wait("g1", "heal")
        field.wait_commit("g1", after=woken, step=alone["step"] + 6)
        run = field.drain()
    one_history(run)
    never_confirmed(run, "g1", 1, after=stopped["t"])
    assert {e["incarnation"] for e in run.events("g0", "commit")} == {1}


def test_a_checkpoint_that_a_buried_incarnation_publishes_late_is_not_accepted(rig):
    """[fence] G1 is stopped before its rename, everybody else dies, the run is rolled back to an older checkpoint, G1
    wakes and renames: the newest folder is one of a dead branch, and the next resume does not take it."""
    keys = {"checkpoint__interval": 10, "fault_tolerance__start_wait_s": 3.0}
    with Field(rig, "late-rename", **keys) as field:
        field.start("g0", points=["g0:save_stage:kill"])  # once it is alone it saves every step: it dies of the first
        field.start("g1", points=["g1:save_rename:stop"])  # whose turns are 10, 30, ...
        field.wait("g1", "fault")
        field.wait_gone("g1")
        assert next(e["participants"] for e in field.events("g0", "commit")) == ["g0", "g1"]
        field.wait("g0", "fault")
        field.wait_gone("g0")
        assert field.events("g0", "checkpoint") == []
        field.start("g0", points=["g0:forward@0:delay=600"])
        rollback = field.wait("lighthouse", "rollback")
        assert rollback["to"] == "0:0.0"
        field.wait("g0", "fault", lambda e: e["incarnation"] == 2)
        field.signal("g1", signal.SIGCONT)
        assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
        published = wait_until(lambda: list(field.folder.root.glob("checkpoints/step-*")), "it was renamed", field.said)
        assert [path.name.startswith("step-00000010") for path in published] == [True]
        field.kill("g0")
        field.wait_gone("g0", 2)
        field.start("g0", "g1")
        restored = field.wait("g0", "restore", lambda e: e["incarnation"] == 3)
        assert (restored["step"], restored["source"]) == (0, "scratch")
        field.wait_commit("g0", step=12)
        run = field.drain()
    one_history(run)
    assert len(run.events("lighthouse", "rollback")) >= 1


def test_of_two_lighthouses_the_older_is_refused(rig, tmp_path):
    """One with an older epoch, and no memory, takes the address: the groups wait for the one they know."""
    folder = tmp_path / "older"
    with Field(rig, "two-lighthouses") as field:
        field.kill_lighthouse()
        journal = Journal(field.folder.lighthouse_state)  # the known one is of a later epoch than any clock's
        journal.commit(dataclasses.replace(Stored(), epoch=int(time.time()) + 1_000_000))
        journal.close()
        field.light()
        field.start("g0", "g1")
        field.wait_commit("g0", step=4)
        field.kill_lighthouse()
        field.light(folder)
        for group in ("g0", "g1"):
            log = field.folder.rank_log(group=group, incarnation=1, rank=0)
            wait_until(lambda log=log: "was seen" in log.read_text(), f"{group} meets the older", field.said)
        older = field.control().status()
        assert older["epoch"] <= time.time()
        assert older["quorum"] is None
        last = field.events("g0", "commit")[-1]["step"]
        assert field.events("launcher", "exit") == [], field.said()
        field.kill_lighthouse()
        field.light()
        field.wait_commit("g0", step=last + 4)
        run = field.drain()
    one_history(run)
    assert {e["incarnation"] for g in ("g0", "g1") for e in run.events(g, "commit")} == {1}
    assert run.events("lighthouse", "rollback") == []


def test_four_groups_of_which_two_come_late_make_one_history(rig):
    """Two are delayed beyond the limit of the start; min_groups is 2, so twice two would be enough for a split."""
    keys = {"fault_tolerance__start_wait_s": 1.0, "fault_tolerance__min_groups": 2}
    with Field(rig, "four", groups=4, **keys) as field:
        field.start("g2", "g0")
        field.wait_commit("g0", step=3)
        field.start("g3", "g1")
        field.wait_commit("g1", step=6)
        field.wait_commit("g3", step=6)
        field.kill("g2")
        field.wait_gone("g2")
        last = field.wait_commit("g0", step=field.events("g0", "commit")[-1]["step"] + 3)
        assert last["participants"] == ["g0", "g1", "g3"]
        run = field.drain()
    one_history(run)
    sets = [tuple(e["participants"]) for e in run.events("lighthouse", "quorum") if e["t"] < last["t"]]
    assert next(iter(dict.fromkeys(sets))) == ("g0", "g2")
    assert not {("g1", "g3"), ("g1",), ("g3",)} & set(sets), "never a second quorum beside the first"


@pytest.mark.long
def test_twenty_deaths_between_quorum_and_configure(rig):
    """Each costs the survivor one discard, at once, though its own configure would wait 60 s for the dead. Twenty
    groups, for one whose heals fail would be held back longer each time."""
    with Field(rig, "configure", groups=22, fault_tolerance__start_wait_s=1.0) as field:
        field.start("g0", "g1")
        field.wait_commit("g1", step=3)
        for number in range(2, 22):
            group = f"g{number}"
            field.start(group, points=[f"{group}:configure:delay=600"])
            field.wait(group, "fault")
            killed = time.time()
            field.kill(group)
            commit = field.wait_commit("g0", after=killed)
            assert commit["participants"] == ["g0", "g1"]
            assert commit["t"] - killed < 5
        run = field.drain()
    one_history(run)
    for group in ("g0", "g1"):
        lost = [e["reason"] for e in run.events(group, "discard")]
        assert lost == ["peer_lost"] * 20
        assert {e["incarnation"] for e in run.events(group, "commit")} == {1}
