"""The gateway with real gRPC and torchft's real manager servers and clients: quorums, deaths, drains, refusals."""

import json
import signal
import urllib.request

import pytest

from configs.protocol import Buried, Kind, Refused, Unreachable
from configs.words import SCRATCH, DepartureCause, Lineage
from lighthouse.client import Cancelled, Control
from lighthouse.state import Participant, read_state
from tests.support.lighthouse import Stage, ask_all, committed, finish, started, terms, wait_asked, wait_until


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def test_both_are_seated_and_commits_are_confirmed_by_the_next_quorum(stage):
    g0, g1, first = started(stage)
    assert first.names == ("g0", "g1")
    assert first.up_to_date == ("g0", "g1")
    assert first.restore == SCRATCH
    assert first.quorum_id == first.attempt
    second, _ = ask_all((g0, committed(first), False), (g1, committed(first), False))
    assert second.attempt == first.attempt + 1
    assert second.quorum_id == first.quorum_id
    assert second.current == committed(first)
    assert second.healing == ()
    (confirmed,) = stage.events("confirmed")
    assert (confirmed["step"], confirmed["participants"]) == (1, ["g0", "g1"])
    assert Lineage.parse(confirmed["lineage"]) == committed(first)
    ask_all((g0, committed(first), False), (g1, committed(first), False))  # a discarded attempt
    assert len(stage.events("confirmed")) == 1
    assert [event["step"] for event in stage.events("quorum")] == [0, 1, 1]


def test_a_fresh_quorum_id_when_a_member_asks_for_one(stage):
    g0, g1, first = started(stage)
    again, _ = ask_all((g0, SCRATCH, False), (g1, SCRATCH, False, {"fresh": True}))
    assert again.quorum_id == again.attempt > first.attempt


def test_a_killed_group_is_told_of_at_once_and_its_successor_heals(stage):
    process = stage.toy_process("g1", "life-1")
    g0 = stage.toy("g0")
    first = g0.ask(void=True)
    assert first.names == ("g0", "g1")
    process.send_signal(signal.SIGKILL)
    notice = g0.wait_notice(lambda notice: notice.dead)
    assert [(dead.group, dead.incarnation) for dead in notice.dead] == [("g1", 1)]
    alone = g0.ask(committed(first))
    assert alone.names == ("g0",)
    assert alone.quorum_id > first.quorum_id
    g1 = stage.toy("g1")
    assert g1.incarnation == 2
    joint, _ = ask_all((g0, committed(alone), False), (g1, SCRATCH, True))
    assert joint.up_to_date == ("g0",)
    assert joint.healing == ("g1",)
    assert [event["participants"] for event in stage.events("confirmed")] == [["g0", "g1"], ["g0"]]
    (departure,) = wait_until(lambda: stage.events("departure"))
    assert (departure["group"], departure["incarnation"], departure["cause"]) == ("g1", 1, "exited")


def test_the_launchers_word_is_enough_and_gives_the_cause(stage):
    g0, g1, _ = started(stage)
    launcher = Control(stage.lighthouse.url)
    assert stage.toy("g1", life="second").incarnation == 2  # a new life buries the one before
    g0.wait_notice(lambda notice: [dead.incarnation for dead in notice.dead] == [1])
    launcher.leave("g1", None, life="second", cause=DepartureCause.KILLED, reason="signal 9")
    launcher.leave("g1", None, life="second", cause=DepartureCause.KILLED, reason="signal 9")
    launcher.leave("g1", None, life="never seen", cause=DepartureCause.KILLED)
    g1.wait_notice(lambda notice: notice.buried)
    departures = [(event["incarnation"], event["cause"]) for event in stage.events("departure")]
    assert departures == [(1, "exited"), (2, "killed")]
    with pytest.raises(Refused, match="buried: signal 9"):
        launcher.join(terms(), group="g1", life="second")
    launcher.close()


def test_the_cause_of_a_closed_stream_waits_for_a_better_word(stage):
    g0, g1, _ = started(stage)
    g1.watch.close()
    g0.wait_notice(lambda notice: notice.dead)
    g0.control.leave("g1", 1, cause=DepartureCause.KILLED, reason="signal 9")
    (departure,) = stage.events("departure")
    assert departure["cause"] == "killed"


def test_joining_again_with_the_same_life_is_the_same_incarnation(stage):
    g0 = stage.toy("g0", life="one")
    assert g0.control.join(terms(), group="g0", life="one") == g0.seated
    assert not g0.control.status()["groups"][0]["buried"]


def test_the_buried_are_refused_at_once_with_the_reason(stage):
    g0, g1, first = started(stage)
    g0.control.kill("g1", reason="to see")
    assert g1.wait_notice(lambda notice: notice.buried).buried == "to see"
    assert read_state(stage.lighthouse.settings.state).buried(Participant("g1", 1))
    with pytest.raises(Buried, match="to see"):
        g1.begin(committed(first))[0].result(10)
    waiting = g0.begin(committed(first))
    assert finish(waiting).names == ("g0",)
    with pytest.raises(Refused, match="no incarnation of g1"):
        g0.control.kill("g1")


def test_a_death_while_waiting_takes_the_request_back(stage):
    g0, g1, first = started(stage)
    asked = g1.begin(committed(first))
    wait_asked(g1)
    g1.watch.close()
    assert g0.ask(committed(first)).names == ("g0",)
    with pytest.raises(Buried, match="stream closed"):
        asked[0].result(10)


def test_a_member_that_moved_on_ends_the_attempt_for_its_fellows(stage):
    g0, g1, first = started(stage)
    asked = g0.begin(SCRATCH)  # a collective failed: it asks without the attempt's commit
    notice = g1.wait_notice(lambda notice: notice.over)
    assert notice.over == (first.attempt,)
    assert notice.dead == ()
    g1.ask(SCRATCH)
    finish(asked)


def test_a_member_with_the_attempts_commit_does_not(stage):
    g0, g1, first = started(stage)
    asked = g0.begin(committed(first))
    wait_asked(g0)
    g1.wait_notice(lambda notice: notice.over == ())
    g1.ask(committed(first))
    finish(asked)


def test_a_request_can_be_taken_back(stage):
    g0 = stage.toy("g0")
    grant, _ = g0.begin(void=True)
    wait_asked(g0)
    g0.control.cancel_ask()
    with pytest.raises(Cancelled):
        grant.result(10)
    wait_until(lambda: not g0.control.status()["groups"][0]["asks"])


def test_without_a_stream_a_request_does_not_count_and_the_status_says_so(stage):
    g0 = stage.toy("g0", watch=False, groups=1)
    asked = g0.begin(void=True)
    wait_until(lambda: "g0:1 holds no Watch stream" in g0.control.status()["waits_for"])
    g0.watch = g0.control.watch("g0", 1, lambda notice: None, g0.breaks.append)
    assert finish(asked).names == ("g0",)


def test_of_many_that_are_awaited_the_status_names_those_who_have_not_asked(stage):
    toys = [stage.toy(f"g{i}", groups=4) for i in range(4)]
    first, *_ = ask_all(*((toy, SCRATCH, True) for toy in toys))
    asked = []
    for number, toy in enumerate(toys[:3]):
        asked.append(toy.begin(committed(first)))
        wait_asked(toy)
        waits_for = toy.control.status()["waits_for"]
        assert waits_for.endswith("not asked: " + ", ".join(f"g{i}:1" for i in range(number + 1, 4)))
    toys[3].close()  # the last one that is awaited dies
    assert finish(asked[0]).names == ("g0", "g1", "g2")


def test_a_drained_group_leaves_without_a_loss(stage):
    g0, g1, first = started(stage)
    state = committed(first)
    wait = g0.begin(state)
    released, _ = g1.begin(state, drain=True)
    assert released.result(10).kind is Kind.RELEASE
    stays = finish(wait)
    assert stays.names == ("g0",)
    g1.watch.close()
    (departure,) = wait_until(lambda: stage.events("departure"))
    assert departure["cause"] == "left"
    last = g0.ask(committed(stays), drain=True)
    assert last.kind is Kind.LEAVE
    g0.control.leave("g0", 1, cause=DepartureCause.LEFT, reason="drained")
    assert [event["cause"] for event in stage.events("departure")] == ["left", "left"]


def test_too_few_groups_past_the_limit_are_told_so(stage):
    g0, g1, first = started(stage, min_groups=2, start_wait_s=0.2)
    g1.close()
    stage.toys.remove(g1)
    with pytest.raises(Refused, match="quorum lost: 1 of at least 2 groups"):
        g0.begin(committed(first))[0].result(10)


def test_another_run_and_unadmitted_ids_are_refused(stage):
    g0, _, _ = started(stage)
    with pytest.raises(Refused, match="config_digest is 'other'"):
        g0.control.join(terms(config_digest="other"), group="g2")
    with pytest.raises(Refused, match="group name"):
        g0.control.join(terms(), group="g:2")
    told = []
    stranger = g0.control.watch("g7", 1, told.append, lambda reason: None)
    wait_until(lambda: told)
    assert "not admitted" in told[0].buried
    stranger.close()


def test_an_older_lighthouse_is_not_obeyed(stage):
    g0 = stage.toy("g0")
    g0.control._see(g0.control.epoch + 1)
    with pytest.raises(Unreachable, match="epoch"):
        g0.control.join(terms(), group="g0")


def test_pages_and_the_config_are_served(stage):
    g0, _, _ = started(stage)
    g0.control.report("g0", 1, phase="compute", step=3)
    wait_until(lambda: g0.control.status()["groups"][0]["phase"] == "compute")

    def page(path):
        with urllib.request.urlopen(stage.lighthouse.http_url + path, timeout=10) as answer:
            return answer.read().decode()

    assert page("/healthz") == "ok\n"
    status = json.loads(page("/status.json"))
    assert status["quorum"]["participants"] == ["g0", "g1"]
    assert status["groups"][0]["step"] == 3
    metrics = page("/metrics")
    for line in (
        'phalanx_quorum_id{run="test"} 1.0',
        'phalanx_quorum_participants{run="test"} 2.0',
        'phalanx_quorum_changes_total{run="test"} 1.0',
        'phalanx_groups_alive{run="test"} 2.0',
        'phalanx_quorum_wait_seconds_count{run="test"} 2.0',
        'phalanx_heartbeat_age_seconds{group="g1",run="test"}',
    ):
        assert line in metrics
    assert "phalanx_group_departures_total{" not in metrics
    assert g0.control.config() == "[job]"
    with pytest.raises(urllib.error.HTTPError):
        page("/replica/g0/kill")
