"""The interleavings that break plain torchft, with real groups that are stopped, woken and replaced: one history.

The names in brackets are those of the protocol model's counterexamples.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from configs.words import Exit, Lineage
from tests.support.field import Field, never_confirmed, one_history, wait_until
from tests.support.skewed import AT_STEP, run_skewed


@pytest.fixture(scope="module")
def undisturbed(rig):
    """The digests of a run of one group that nothing disturbs, by step."""
    with Field(rig, "interleaved-alone", groups=1) as field:
        field.start("g0")
        field.wait_commit("g0", step=60)
        return field.drain().series("digest")


def come_back(field, group):
    """A successor heals and takes part."""
    field.start(group)
    heal = wait_until(lambda: next(iter(field.events(group, "heal")), None), f"{group} heals", field.said)
    field.wait_commit(group, after=heal["t"], step=heal["step"] + 3)


def incarnations(run, group):
    return {e["incarnation"] for e in run.events(group, "commit")}


def test_g1_sleeps_between_reduce_and_vote_while_g0_goes_on_alone(rig, undisturbed):
    """[no_lineage, buried_volatile] Both reduces finish on G1, which is stopped before its vote; G0 hears of the loss
    before it holds the summary, discards, commits that step alone; the gateway is restarted; G1 wakes and commits."""
    with Field(rig, "before-its-vote") as field:
        field.start("g0", points=["g0:summary_sent@5:delay=2"])
        field.start("g1", points=["g1:vote_before@5:stop"])
        stopped = field.wait("g1", "fault")
        assert field.wait_gone("g1")["cause"] in ("expired", "hung")
        discard = field.wait("g0", "discard")
        assert (discard["step"], discard["reason"]) == (5, "peer_lost")
        field.wait_commit("g0", step=8, alone=True)
        field.kill_lighthouse()
        field.light()
        field.wait_commit("g0", step=15, alone=True)
        field.signal("g1", signal.SIGCONT)
        assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
        come_back(field, "g1")
        run = field.drain()
    one_history(run, undisturbed)
    never_confirmed(run, "g1", 1, after=stopped["t"])
    assert incarnations(run, "g0") == {1}


def test_g0_commits_and_dies_after_g1_discarded(rig, undisturbed):
    """[hold_lineage] G0's commit is orphaned: nobody who asks holds it. The same step is made once more, by G1."""
    with Field(rig, "commits-and-dies") as field:
        field.start("g0", points=["g0:agree@6:kill"])
        field.start("g1", points=["g1:summary_sent@5:delay=0.5"])
        assert field.wait("g1", "discard")["step"] == 5
        field.wait_commit("g1", step=8, alone=True)
        come_back(field, "g0")
        run = field.drain()
    one_history(run, undisturbed)
    orphan = next(e for e in run.events("g0", "commit") if e["step"] == 6)
    assert orphan["incarnation"] == 1
    assert Lineage.parse(orphan["lineage"]) not in run.chain
    assert run.events("lighthouse", "rollback") == []


def test_g0s_commit_counts_when_it_lives_to_ask_with_it(rig, undisturbed):
    """[hold_lineage] The same, but G0 lives: its commit is the next on the granted one, so G1 heals to it, at once."""
    with Field(rig, "commits-and-lives") as field:
        field.start("g0")
        field.start("g1", points=["g1:vote_before@5:delay=1", "g1:vote_after@5:raise"])
        assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
        field.wait_commit("g0", step=8, alone=True)
        come_back(field, "g1")
        run = field.drain()
    one_history(run, undisturbed)
    made = next(e for e in run.events("g0", "commit") if e["step"] == 6)
    assert Lineage.parse(made["lineage"]) in run.chain
    assert made["participants"] == ["g0", "g1"]


def test_a_group_that_asks_and_dies_at_once_is_never_seated(rig, undisturbed):
    with Field(rig, "asks-and-dies", groups=3, fault_tolerance__failure_detection_s=3) as field:
        field.start("g0", "g1")
        field.start("g2", points=["g2:agree@5:delay=2"])
        slow = field.wait("g2", "fault")
        control = field.control()
        wait_until(lambda: any(g["group"] == "g1" and g["complete"] for g in control.status()["groups"]), "g1 asks")
        field.kill("g1")
        gone = field.wait_gone("g1")
        late = field.wait("g2", "quorum", lambda e: e["step"] == 5)
        assert late["participants"] == ["g0", "g2"]
        field.wait_commit("g0", step=8)
        come_back(field, "g1")
        run = field.drain()
    one_history(run, undisturbed)
    after = [e for e in run.events("lighthouse", "quorum") if e["t"] > gone["t"]]
    assert after[0]["participants"] == ["g0", "g2"], "gone from the next quorum"
    assert after[0]["seconds"] > 0.5, "the others had asked long before"
    assert late["t"] - slow["t"] < 2 + 1, "nobody waited for the dead, and 3 s are the detection time"
    assert not [e for g in ("g0", "g2") for e in run.events(g, "discard")], "no attempt was lost"


def test_a_starved_gateway_buries_nobody_and_splits_nothing(rig, undisturbed):
    """[left_out, slow] Stopped for as long as the detection time, and for three times as long."""
    draw = random.Random(7)
    with Field(rig, "starved", groups=3) as field:
        field.start("g0", "g1", "g2")
        field.wait_commit("g0", step=3)
        for pause in (1.0, 3.0, 1.0):
            threshold = len(field.events("g0", "commit")) + draw.randrange(2, 5)
            wait_until(lambda least=threshold: len(field.events("g0", "commit")) >= least, "g0 goes on", field.said)
            time.sleep(draw.random() * 0.05)  # the phase in which it is stopped
            field.lighthouse.send_signal(signal.SIGSTOP)
            time.sleep(pause)
            field.lighthouse.send_signal(signal.SIGCONT)
        last = field.events("g0", "commit")[-1]
        field.wait_commit("g0", step=last["step"] + 5)
        assert field.events("lighthouse", "departure") == []
        run = field.drain()
    one_history(run, undisturbed)
    for group in ("g0", "g1", "g2"):
        assert incarnations(run, group) == {1}
        assert run.events(group, "discard") == []
    trained = [e["participants"] for e in run.events("lighthouse", "quorum") if e["t"] < last["t"]]
    assert all(names == ["g0", "g1", "g2"] for names in trained)


def test_ranks_of_one_group_at_different_steps_end_their_incarnation_and_disturb_nobody(rig, undisturbed):
    with Field(rig, "lost-count", ranks=2) as field:
        field.start("g0")
        field.start("g1", function=run_skewed)
        end = field.wait_exit("g1")
        assert end["code"] == Exit.INCARNATION_OVER
        why = field.wait("g1", "exit")["reason"]
        assert "disagree about their state" in why
        field.wait_commit("g0", step=AT_STEP + 4, alone=True)
        come_back(field, "g1")
        run = field.drain()
    one_history(run)
    assert incarnations(run, "g0") == {1}
    assert run.events("g0", "discard") == [], "it was between two attempts"


def test_a_rank_finishes_its_backward_before_it_leaves_a_lost_attempt(rig):
    """Its fellows wait in FSDP's collectives; and a loss that is told meanwhile counts at the next wait. [edge_loss]"""
    with Field(rig, "finishes-backward", ranks=2) as field:
        field.start("g0", points=["g0:backward@5#0:delay=1.5"])
        field.start("g1", points=["g1:forward@5#1:kill"])
        killed = field.wait("g1", "fault")
        gone = field.wait_gone("g1")
        slow = field.wait("g0", "fault")
        discard = field.wait("g0", "discard")
        assert gone["t"] < slow["t"] + 1.4, "it was told while it computed"
        assert slow["t"] + 1.5 <= discard["t"] < slow["t"] + 10, "and left once it had computed, not after 60 s"
        assert discard["reason"] == "peer_lost"
        field.wait_commit("g0", after=killed["t"], step=8)
        run = field.drain()
    one_history(run)
    assert incarnations(run, "g0") == {1}


def test_a_first_step_that_takes_long_is_not_called_hung(rig):
    """As with a compile: longer than the detection time, and the other group waits for it."""
    with Field(rig, "slow-first-step") as field:
        field.start("g0")
        field.start("g1", points=["g1:forward@0:delay=3"])
        field.wait_commit("g0", step=2)
        assert field.events("lighthouse", "departure") == []
        first = field.events("g0", "commit")[0]
        assert first["participants"] == ["g0", "g1"]
        assert first["seconds"] > 2.9
        one_history(field.drain())


def test_a_rank_that_hangs_before_its_group_has_asked_is_buried(rig, undisturbed):
    """Its pulses go on, its phase is that of those who wait for a quorum, but its group has not asked."""
    with Field(rig, "hangs-before-asking") as field:
        field.start("g0")
        field.start("g1", points=["g1:agree@6:hang"])
        hung = field.wait("g1", "fault")
        gone = field.wait_gone("g1")
        assert gone["cause"] == "hung"
        assert gone["t"] - hung["t"] < 15
        assert field.wait_exit("g1")["code"] == Exit.INCARNATION_OVER
        field.wait_commit("g0", step=9, alone=True)
        run = field.drain()
    one_history(run, undisturbed)
    assert run.events("g0", "discard") == []
