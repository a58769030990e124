"""Unmodified torchft.Managers, each in a process of its own, train together through the gateway."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import grpc
import pytest

from configs.words import SCRATCH, Lineage
from lighthouse.client import Control
from lighthouse.managers import claim_of, who_speaks
from lighthouse.protos import torchft_pb2, torchft_pb2_grpc
from lighthouse.state import Participant, Stored
from tests.support.lighthouse import ROOT, InThread, terms, wait_until


class Group:
    """One such process; it goes on to its next step when it is told to."""

    def __init__(self, url, name):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.torchft_group", url, name],
            cwd=ROOT,
            env={**os.environ, "RUST_LOG": "warn"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go_on(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def commit(self):
        """The next commit it says."""
        line = self._process.stdout.readline()
        assert line, "it ended"
        return json.loads(line)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stage(tmp_path):
    lighthouse, groups = InThread(tmp_path), []

    def start(name):
        groups.append(Group(lighthouse.url, name))
        return groups[-1]

    yield lighthouse, start
    for group in groups:
        group.close()
    lighthouse.stop()


def commits(*groups, on=True):
    """One commit of each, which must be the same state; then, with ``on``, all are told to go on."""
    said = [group.commit() for group in groups]
    assert len({(c["step"], c["participants"], *c["weights"]) for c in said}) == 1, said
    if on:
        for group in groups:
            group.go_on()
    return said[0]


def test_two_managers_train_one_is_killed_the_other_goes_on_at_once_and_the_successor_heals(stage):
    lighthouse, start = stage
    g0, g1 = start("g0"), start("g1")
    for step in range(1, 6):
        said = commits(g0, g1, on=step < 5)
        assert (said["step"], said["participants"]) == (step, 2)
    g0.go_on()  # it asks, and waits for the one that is dead before it can
    g1.kill()
    began = time.monotonic()
    alone = g0.commit()
    took = time.monotonic() - began
    print(f"\nfrom the kill to the survivor's commit: {took:.3f} s")
    assert (alone["step"], alone["participants"]) == (6, 1)
    assert took < 4, "stock torchft waits 5 s for the dead one's heartbeat to go stale"
    again = start("g1")
    wait_until(lambda: any(g["group"] == "g1" and g["complete"] for g in status(lighthouse)["groups"]))
    g0.go_on()
    assert commits(g0, again, on=False)["step"] == 7
    assert [e["participants"] for e in lighthouse.events("quorum")][-2:] == [["g0"], ["g0", "g1"]]
    assert lighthouse.events("quorum")[-1]["healing"] == ["g1"]
    steps = [event["step"] for event in lighthouse.events("confirmed")]
    assert steps == list(range(1, 7))


def test_managers_outlive_their_lighthouse(stage, tmp_path):
    lighthouse, start = stage
    g0, g1 = start("g0"), start("g1")
    commits(g0, g1, on=False)
    lighthouse.stop()
    for group in (g0, g1):
        group.go_on()
    second = InThread(tmp_path, bind=lighthouse.url.removeprefix("http://"))
    try:
        said = commits(g0, g1, on=False)
        assert (said["step"], said["participants"], said["incarnation"]) == (2, 2, 1)
        assert second.events("departure", "rollback") == []
    finally:
        second.stop()


def test_nobody_speaks_for_a_group_that_speaks_for_itself(stage):
    lighthouse, _ = stage
    control = Control(lighthouse.url)
    control.join(terms(), group="g0")
    with grpc.insecure_channel(lighthouse.url.removeprefix("http://")) as channel:
        ask = torchft_pb2_grpc.LighthouseServiceStub(channel).Quorum
        for replica_id, why in (("g0:1:uuid", "g0:1 speaks for itself"), ("g1:1:uuid", "join first"), ("x", "join")):
            member = torchft_pb2.QuorumMember(replica_id=replica_id)
            with pytest.raises(grpc.RpcError, match=why):
                ask(torchft_pb2.LighthouseQuorumRequest(requester=member), timeout=10)
    control.close()


GRANTED = Lineage(5, 40)
TOOK_PART = Stored(granted=GRANTED, last_quorum_id=41, known=(Participant("g0", 1),), managers={"g0": 1, "g1": 2})


@pytest.mark.parametrize(
    ("who", "step", "claimed"),
    [
        ("g0:1", 5, {"lineage": GRANTED, "void": False, "disk": ()}),
        ("g0:1", 6, {"lineage": Lineage(6, 41), "void": False, "disk": ()}),
        ("g0:1", 9, {"lineage": Lineage(9, 0), "void": False, "disk": ()}),
        ("g1:2", 0, {"lineage": SCRATCH, "void": True, "disk": ()}),
        ("g1:2", 5, {"lineage": SCRATCH, "void": True, "disk": (GRANTED,)}),
    ],
)
def test_what_a_manager_claims(who, step, claimed):
    member = torchft_pb2.QuorumMember(replica_id=f"{who}:uuid", step=step)
    claim = claim_of(who_speaks(member.replica_id), member, TOOK_PART)
    assert {name: getattr(claim, name) for name in claimed} == claimed
    assert not claim.fresh
    member.commit_failures = 1
    assert claim_of(who_speaks(member.replica_id), member, TOOK_PART).fresh


def status(lighthouse):
    with urllib.request.urlopen(lighthouse.http_url + "/status.json", timeout=10) as answer:
        return json.loads(answer.read())
