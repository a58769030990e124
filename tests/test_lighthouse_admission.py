"""Who is let in: the rules, and at the real gateway that nobody who is turned away changes anything for the others."""

from __future__ import annotations

import dataclasses
import os
import socket
import struct

import grpc
import pytest

from configs.protocol import Pulse, Refused, Unreachable, Voucher
from configs.words import SCRATCH, DepartureCause, Lineage
from lighthouse.admission import Later, judge_join, judge_voucher
from lighthouse.client import Control
from lighthouse.protos import phalanx_pb2, torchft_pb2, torchft_pb2_grpc
from lighthouse.state import Participant, Stored, Vouched, read_state
from lighthouse.waiting import Refused as TurnedDown
from tests.support.lighthouse import Stage, ask_all, committed, started, terms, wait_until

VERSIONS = {"python": "3.11", "torch": "2.13.0", "torchft": "0.2.0", "numpy": "2.4"}
CPU = {"CPU capability": "AVX512", "threads of a rank": "1"}
EXACT = terms(exact=True, software=VERSIONS, machine=CPU)
G0, G1 = Participant("g0", 1), Participant("g1", 1)
HERE = Stored(incarnations={"g0": 1, "g1": 1}, terms=EXACT)


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    yield made
    made.close()


def join(mine, *, stored=HERE, living=(G0, G1), settling=False, group="g2"):
    return judge_join(mine, group, stored=stored, living=living, settling=settling)


# ---- the rules -------------------------------------------------------------------------------------------------------


def test_equal_terms_are_let_in_and_the_first_group_sets_the_measure():
    assert join(EXACT) is None
    assert join(EXACT, stored=Stored(), living=()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"config_digest": "other"},
        {"steps": 7},
        {"software": {**VERSIONS, "torch": "2.12.0"}},
        {"software": {}},
        {"machine": {**CPU, "CPU capability": "AVX2"}},
        {"machine": {"GPU": "NVIDIA H200"}},
    ],
    ids=str,
)
def test_any_difference_is_refused_by_name(change):
    refusal = join(dataclasses.replace(EXACT, **change))
    assert isinstance(refusal, TurnedDown)
    (field, value) = next(iter(change.items()))
    name = field if not isinstance(value, dict) else ("torch" if field == "software" else "CPU capability")
    assert f"{name} is " in refusal.reason
    assert "g0, g1 trained here" in refusal.reason


def test_everything_that_differs_is_named_at_once():
    mine = dataclasses.replace(EXACT, run="b", steps=7, software={**VERSIONS, "numpy": "1.26"}, machine={})
    (reason,) = dataclasses.astuple(join(mine))[:1]
    for text in (
        "run is 'b', not 'test'",
        "steps is 7, not 100",
        "numpy is 1.26, not 2.4",
        "threads of a rank is nothing",
    ):
        assert text in reason


def test_with_fp32_another_machine_is_welcome_but_no_other_library():
    here = dataclasses.replace(HERE, terms=dataclasses.replace(EXACT, exact=False))
    mine = dataclasses.replace(EXACT, exact=False, machine={"GPU": "NVIDIA H200"})
    assert join(mine, stored=here) is None
    assert join(dataclasses.replace(mine, software={}), stored=here) is not None


def test_a_group_of_the_same_name_does_not_take_over_a_living_run():
    """The only group that lives is the one whose name the second job uses."""
    assert isinstance(join(dataclasses.replace(EXACT, run="other"), living=(G0,), group="g0"), TurnedDown)
    assert join(EXACT, living=(G0,), group="g0") is None  # its successor


def test_a_run_is_not_taken_over_while_its_lighthouse_comes_back():
    other = dataclasses.replace(EXACT, run="other")
    assert isinstance(join(other, living=(), settling=True), Later)
    assert join(other, living=()) is None  # nobody came
    buried = dataclasses.replace(HERE, floors={"g0": 2, "g1": 2})
    assert join(other, stored=buried, living=(), settling=True) is None
    assert join(EXACT, living=(), settling=True) is None


@pytest.mark.parametrize(
    "change",
    [{"failure_detection_s": 0.0}, {"failure_detection_s": float("nan")}, {"groups": 0}, {"start_wait_s": -1.0}],
)
def test_terms_that_no_config_gives_are_refused(change):
    refusal = join(dataclasses.replace(EXACT, **change), stored=Stored(), living=())
    assert isinstance(refusal, TurnedDown)
    assert next(iter(change)) in refusal.reason


@pytest.mark.parametrize("name", ["", "g:2", "g/2", "-g", "g" * 65, "g\n2", "ĝ2"])
def test_names_that_cannot_be_told_or_filed_are_refused(name):
    assert "group name" in join(EXACT, group=name).reason


def test_vouchers_are_compared_with_the_groups_that_are_here():
    here = dataclasses.replace(HERE, vouched={"g0": Vouched(1, "s", "g"), "g1": Vouched(1, "s", "g")})
    who = Participant("g2", 1)
    assert judge_voucher(who, Voucher(store="s", golden="g"), stored=here) is None
    both = judge_voucher(who, Voucher(store="t", golden="h"), stored=here).reason
    assert "token store is t, not s as of g0, g1" in both
    assert "golden digest is h, not g as of g0, g1" in both
    fp32 = dataclasses.replace(here, terms=dataclasses.replace(EXACT, exact=False))
    assert judge_voucher(who, Voucher(store="s", golden="h"), stored=fp32) is None
    assert judge_voucher(who, Voucher(store="t"), stored=fp32) is not None
    gone = dataclasses.replace(here, floors={"g0": 2}, incarnations={"g0": 1, "g1": 2})  # buried; not vouched yet
    assert judge_voucher(who, Voucher(store="t", golden="h"), stored=gone) is None
    assert judge_voucher(G0, Voucher(store="t", golden="h"), stored=dataclasses.replace(here, floors={"g1": 2})) is None


# ---- at the gateway --------------------------------------------------------------------------------------------------


def goes_on(stage, g0, g1, before):
    """The next quorum comes with the same members, nobody gone, nothing over."""
    state = committed(before)
    after, _ = ask_all((g0, state, False), (g1, state, False))
    assert after.members == before.members
    assert after.current == state
    assert stage.events("departure") == []
    return after


def test_a_second_job_is_refused_with_the_reason_and_told_of_once(stage):
    g0, g1, first = started(stage, software=VERSIONS)
    for group in ("g0", "g0", "g2"):
        with pytest.raises(Refused, match=r"run is 'second', not 'test'; torch is 2.12, not 2.13.0"):
            g0.control.join(terms(run="second", software={**VERSIONS, "torch": "2.12"}), group=group)
    goes_on(stage, g0, g1, first)
    assert [event["group"] for event in stage.events("refusal")] == ["g0", "g2"]
    assert g0.control.config() == "[job]"
    assert read_state(stage.lighthouse.settings.state).terms.run == "test"


def test_another_store_is_refused_before_it_is_seated_and_departs_as_refused(stage):
    g0, g1, first = started(stage)
    g0.control.vouch("g0", 1, Voucher(store="s"))
    g1.control.vouch("g1", 1, Voucher(store="s", golden="not compared"))
    g2 = stage.toy("g2")
    with pytest.raises(Refused, match="token store is t, not s as of g0, g1"):
        g2.control.vouch("g2", 1, Voucher(store="t"))
    with pytest.raises(Refused, match="token store"):
        g2.begin(void=True)[0].result(10)
    after = goes_on(stage, g0, g1, first)
    g2.control.leave("g2", 1, cause=DepartureCause.EXITED)
    (departure,) = stage.events("departure")
    assert (departure["group"], departure["cause"]) == ("g2", "refused")
    assert after.names == ("g0", "g1")
    with pytest.raises(Refused, match="not admitted"):
        g0.control.vouch("g7", 1, Voucher(store="s"))


def test_what_was_vouched_outlives_the_lighthouse(stage):
    g0, _, _ = started(stage)
    g0.control.vouch("g0", 1, Voucher(store="s"))
    stage.restart()
    g2 = stage.toy("g2")
    with pytest.raises(Refused, match="token store is t, not s as of g0"):
        g2.control.vouch("g2", 1, Voucher(store="t"))


def test_a_second_job_waits_while_the_run_may_come_back(tmp_path):
    stage = Stage(tmp_path)
    stays = Control(stage.lighthouse.url)
    stays.join(terms(failure_detection_s=60.0), group="g0")  # will be remembered, and is away
    stays.close()
    stage.restart()
    other = Control(stage.lighthouse.url)
    with pytest.raises(Unreachable, match="g0 may still come back"):
        other.join(terms(run="second", failure_detection_s=60.0), group="g0")
    other.close()
    stage.close()


def test_words_about_others_incarnations_change_nothing(stage):
    g0, g1, first = started(stage)
    stranger = Control(stage.lighthouse.url)
    for group, incarnation in (("g0", 2), ("g0", 0), ("g0", -1), ("g0", None), ("g7", 1), ("", 1)):
        stranger.leave(group, incarnation, cause=DepartureCause.KILLED, reason="says a stranger")
    for group in ("g7", "", "g0:1"):
        with pytest.raises(Refused, match="is alive"):
            stranger.kill(group)
    stranger.report("g7", 1, phase="compute", step=10**9)
    with pytest.raises(Refused, match="not admitted"):
        stranger.report("g0", 2, ended=Lineage(100, 1))
    with pytest.raises(Refused, match="may not end the run"):
        stranger.report("g0", 1, ended=Lineage(100, 1))
    told = []
    watches = [stranger.watch(*who, told.append, lambda reason: None, pulse=Pulse) for who in (("g0", 2), ("g7", 1))]
    wait_until(lambda: len(told) == 2)
    assert all("not admitted" in notice.buried for notice in told)
    for watch in watches:
        watch.close()
    goes_on(stage, g0, g1, first)
    stranger.close()


@pytest.mark.parametrize("replica", ["g0:2:uuid", "g0:1:uuid", "g7:1", "", ":", "g0:1x", "x" * 1000])
def test_replica_ids_that_were_not_admitted_get_no_quorum(stage, replica):
    g0, g1, first = started(stage)
    with grpc.insecure_channel(stage.lighthouse.url.removeprefix("http://")) as channel:
        stub = torchft_pb2_grpc.LighthouseServiceStub(channel)
        stub.Heartbeat(torchft_pb2.LighthouseHeartbeatRequest(replica_id=replica), timeout=10)
        member = torchft_pb2.QuorumMember(replica_id=replica, step=10**6, world_size=1)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Quorum(torchft_pb2.LighthouseQuorumRequest(requester=member), timeout=10)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "was not admitted here" in caught.value.details()
    goes_on(stage, g0, g1, first)


GARBAGE = {
    "nothing": b"",
    "noise": os.urandom(1 << 16),
    "a huge HTTP/2 frame": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + struct.pack(">I", 0xFFFFFF)[1:]
    + b"\x00\x00"
    + b"\0" * 70_000,
    "an endless request line": b"GET /" + b"a" * 200_000,
    "HTTP/1": b"POST /phalanx.Control/Kill HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
}


@pytest.mark.parametrize("words", GARBAGE.values(), ids=GARBAGE)
def test_garbage_and_half_open_connections_disturb_nobody(stage, words):
    g0, g1, first = started(stage)
    held = []
    for url in (stage.lighthouse.url, stage.lighthouse.http_url):
        host, _, port = url.removeprefix("http://").rpartition(":")
        for _ in range(20):
            stranger = socket.create_connection((host, int(port)))
            held.append(stranger)
            try:
                stranger.sendall(words)
            except OSError:
                continue  # it was cut off already
    goes_on(stage, g0, g1, first)
    for stranger in held:
        stranger.close()


def test_a_message_beyond_any_that_a_group_sends_is_refused_unread(stage):
    g0, g1, first = started(stage)
    with grpc.insecure_channel(stage.lighthouse.url.removeprefix("http://")) as channel:
        call = channel.unary_unary(
            "/phalanx.Control/Join",
            request_serializer=phalanx_pb2.JoinRequest.SerializeToString,
            response_deserializer=phalanx_pb2.JoinReply.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(phalanx_pb2.JoinRequest(group="g2", config="x" * (8 << 20)), timeout=30)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    goes_on(stage, g0, g1, first)


def test_a_first_group_from_scratch_needs_no_voucher(stage):
    """Whoever holds the secret is trusted to vouch; stock managers cannot."""
    g0 = stage.toy("g0", groups=1)
    assert g0.ask(SCRATCH, void=True).names == ("g0",)
