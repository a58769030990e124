"""Who is stopped, buried and woken again: it is refused, ends with 7, and nothing of it enters the history.

Collective timeouts are 60 s, so only the lighthouse can have ended a wait.
"""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest

from checkpointing.resume import verify
from configs.words import SCRATCH, Exit, Lineage
from lighthouse.state import Journal, Stored
from tests.support.field import Field, never_confirmed, one_history, wait_until
from tests.support.late import run_and_publish_before_leaving

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


def stopped_before_its_rename(field: Field) -> Lineage:
    """G0 and G1 train; G1 is stopped when the checkpoint of step 20, its own turn, is confirmed and has no name yet; it
    is buried. Returns what it will publish when it wakes."""
    field.wait("g1", "fault")
    field.wait_gone("g1")
    assert [e["participants"] for e in field.events("g0", "commit")[:20]] == [["g0", "g1"]] * 20
    (unfinished,) = (field.folder.root / "checkpoints").glob(".writing-g1.1-step-*")
    late = Lineage.parse_folder(unfinished.name.removeprefix(".writing-g1.1-"))
    assert late is not None
    assert late.step == 20
    return late


def wake_and_publish(field: Field, late: Lineage) -> None:
    """G1 wakes: the name appears although its incarnation is buried, and it ends with 7."""
    assert not (field.folder.root / "checkpoints" / late.folder).exists()
    field.signal("g1", signal.SIGCONT)
    assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
    assert [e["lineage"] for e in field.events("g1", "checkpoint") if e["status"] == "saved"] == [str(late)]


def test_a_checkpoint_that_a_buried_incarnation_publishes_late_is_not_accepted(rig):
    """[fence] Everybody else dies before saving, the run is rolled back to the seed, and only then G1 renames: the one
    checkpoint there is, valid to the last digest, is of a dead branch, and the next resume does not take it."""
    keys = {"checkpoint__interval": 20, "checkpoint__keep_latest_k": 0}
    with Field(rig, "late-rename", **keys) as field:
        # From the moment it is alone G0 saves every step: it dies before the first of these.
        field.start("g0", points=["g0:save_stage:kill"])
        field.start("g1", points=["g1:save_rename:stop"], function=run_and_publish_before_leaving)
        late = stopped_before_its_rename(field)
        field.wait_exit("g0")
        field.start("g0", points=["g0:quorum_after:stop"], fault_tolerance__start_wait_s=1)
        assert field.wait("lighthouse", "rollback")["to"] == str(SCRATCH)
        field.wait("g0", "fault", lambda e: e["incarnation"] == 2)  # it has its quorum, and goes no further
        wake_and_publish(field, late)
        field.kill("g0")
        field.wait_exit("g0", 2)
        checkpoints = field.folder.root / "checkpoints"
        assert [path.name for path in checkpoints.glob("step-*")] == [late.folder]
        verify(checkpoints / late.folder, secret=None)
        field.start("g0", "g1")
        restored = field.wait("g0", "restore", lambda e: e["incarnation"] == 3)
        assert (restored["step"], restored["source"]) == (0, "scratch")
        field.wait_commit("g0", step=late.step + 2, after=restored["t"])
        field.wait("g1", "checkpoint", lambda e: e["incarnation"] == 2 and e["status"] == "saved")
        run = field.drain()
    one_history(run)
    never_confirmed(run, "g1", 1, after=0)
    reason = (checkpoints / f".aside-{late.folder}" / "REASON.txt").read_text()
    assert "the run went on from step 0" in reason
    assert {Lineage.parse_folder(path.name) for path in checkpoints.glob("step-*")} <= set(run.chain)


def test_a_checkpoint_that_is_published_late_disturbs_nobody(rig):
    """G0 has gone on alone and saved: what G1 publishes then is older, of the same history, and soon gone."""
    keys = {"checkpoint__interval": 20, "checkpoint__keep_latest_k": 2}
    with Field(rig, "late-but-older", **keys) as field:
        field.start("g0")
        field.start("g1", points=["g1:save_rename:stop"], function=run_and_publish_before_leaving)
        late = stopped_before_its_rename(field)
        saved = field.wait("g0", "checkpoint", lambda e: e["status"] == "saved" and e["step"] > late.step + 5)
        wake_and_publish(field, late)
        woken = time.time()
        checkpoints = field.folder.root / "checkpoints"
        wait_until(lambda: not (checkpoints / late.folder).exists(), "the next save lets the late one go", field.said)
        field.wait_commit("g0", after=woken, step=saved["step"] + 5)
        field.kill("g0")
        field.wait_exit("g0")
        saves = [e["step"] for e in field.events("g0", "checkpoint") if e["status"] == "saved"]
        field.start("g0", "g1")
        restored = field.wait("g0", "restore", lambda e: e["incarnation"] == 2)
        assert restored["source"] == "disk"
        assert restored["step"] >= saves[-1] > late.step
        field.wait_commit("g1", step=restored["step"] + 3, after=restored["t"])
        run = field.drain()
    one_history(run)
    # To the last one saved, where there is one: a confirmed state need not have been saved yet.
    assert {e["to"] for e in run.events("lighthouse", "rollback")} <= {restored["lineage"]}
    alone = [e for e in run.events("g0", "commit") if e["incarnation"] == 1]
    assert [e["step"] for e in alone] == list(range(1, len(alone) + 1)), "undisturbed"
    assert len(run.events("g0", "discard")) <= 1, "the attempt in which G1 was lost"


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
