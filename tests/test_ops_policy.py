"""Whether, when and with what code a group is started again."""

from __future__ import annotations

import signal

import pytest

from ops.launch.group import GroupEnd
from ops.launch.policy import (
    Ending,
    Next,
    Policy,
    describe_code,
    group_code,
    restart_decision,
    restarts_since_commit,
    settle_s,
)
from ops.launch.requests import Requests
from ops.launch.run import run_code

POLICY = Policy(backoff_s=1.0, backoff_limit_s=8.0)
KILLED = -signal.SIGKILL


def decide(*endings: Ending, policy: Policy = POLICY, draining: bool = False):
    return restart_decision(endings, policy, draining=draining)[0]


def fruitless(code: int = 7) -> Ending:
    return Ending(code=code)


def fruitful(code: int = KILLED) -> Ending:
    return Ending(code=code, committed=True)


@pytest.mark.parametrize("code", [2, 5, 6])
def test_codes_that_end_the_run(code):
    decision = decide(fruitful(code))
    assert (decision.next, decision.code) == (Next.RUN_OVER, code)
    assert decide(fruitful(code), draining=True).next is Next.RUN_OVER


def test_done_is_done():
    assert decide(fruitful(0)).next is Next.GROUP_DONE
    assert decide(fruitful(0)).code == 0


@pytest.mark.parametrize("code", [7, 1, 4, KILLED, -signal.SIGSEGV])
def test_a_loss_restarts_at_once_the_first_time(code):
    for history in ([fruitless(code)], [fruitless(), fruitful(code)]):
        decision = decide(*history)
        assert (decision.next, decision.delay_s) == (Next.RESTART, 0.0)


def test_backoff_doubles_without_a_commit_and_starts_over_with_one():
    delays = [decide(fruitful(), *[fruitless()] * n).delay_s for n in range(6)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert decide(*[fruitless()] * 5, fruitful()).delay_s == 0.0


def test_a_group_that_never_committed_has_one_restart_at_once():
    assert [decide(*[fruitless()] * n).delay_s for n in (1, 2, 3)] == [0.0, 1.0, 2.0]


def test_max_restarts_counts_since_the_last_commit():
    policy = Policy(max_restarts=2)
    assert restarts_since_commit([fruitful(), fruitless(), fruitless()]) == 2
    assert decide(fruitful(), fruitless(), policy=policy).next is Next.RESTART
    over = decide(fruitful(), fruitless(), fruitless(4), policy=policy)
    assert (over.next, over.code) == (Next.RUN_OVER, 4)
    assert decide(*[fruitless()] * 2, fruitful(), policy=policy).next is Next.RESTART
    assert decide(fruitless(KILLED), policy=Policy(max_restarts=0)).code == 7


def test_restarts_are_unlimited_by_default():
    assert decide(*[fruitless()] * 500).next is Next.RESTART


def test_drained_ends_only_where_this_launcher_was_asked():
    assert decide(fruitful(75), draining=True).code == 75
    assert decide(fruitful(75), draining=True).next is Next.GROUP_DONE
    assert decide(fruitful(75)).next is Next.RESTART


def test_a_group_killed_while_it_drains_is_not_started_again():
    decision = decide(fruitful(KILLED), draining=True)
    assert (decision.next, decision.code) == (Next.GROUP_DONE, 75)


def test_quorum_lost_ends_the_run():
    assert decide(fruitless(3)).code == 3
    assert decide(fruitless(3)).next is Next.RUN_OVER


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({0: 7, 1: KILLED}, (KILLED, 1)),
        ({0: 6, 1: 7}, (6, 0)),
        ({0: 7, 1: 7}, (7, 0)),
        ({0: 7, 1: 1}, (1, 1)),
        ({0: KILLED, 1: 5}, (5, 1)),
        ({0: 0, 1: 0}, (0, 0)),
        ({0: 75, 1: 0}, (75, 0)),
        ({1: 7, 0: 75}, (75, 0)),
        ({1: 75, 0: 7}, (7, 0)),
        ({1: 1, 0: 75}, (1, 1)),
    ],
)
def test_which_rank_speaks_for_the_group(codes, expected):
    assert group_code(codes) == expected


def test_only_a_rank_that_does_not_say_why_gives_its_fellows_time():
    assert settle_s(KILLED, grace_s=30) == settle_s(6, grace_s=30) == 0.0
    assert 0 < settle_s(7, grace_s=30) < 1
    assert settle_s(0, grace_s=30) == settle_s(75, grace_s=30) == 30


def test_codes_in_words():
    assert describe_code(-9) == "killed by SIGKILL"
    assert describe_code(7) == "exit 7"
    assert describe_code(-250) == "killed by signal 250"


def requests(*, terminated: bool = False, interrupts: int = 0) -> Requests:
    found = Requests()
    found.terminated, found.interrupts = terminated, interrupts
    return found


def end(code: int, *, ends_run: bool = False) -> GroupEnd:
    return GroupEnd(group="g0", code=code, reason="why", ends_run=ends_run)


@pytest.mark.parametrize(
    ("ends", "asked", "code"),
    [
        ([end(0), end(0)], {}, 0),
        ([end(75), end(6, ends_run=True)], {}, 6),
        ([end(6, ends_run=True), end(5, ends_run=True)], {}, 6),
        ([end(75), end(75)], {"terminated": True}, 75),
        ([end(0), end(0)], {"terminated": True}, 0),
        ([end(0), end(75)], {"terminated": True}, 75),
        ([end(75), end(75)], {"interrupts": 1}, 130),
        ([], {"terminated": True}, 75),
        ([end(0), end(75)], {}, 75),
    ],
)
def test_the_code_of_a_launch(ends, asked, code):
    assert run_code(ends, requests(**asked))[0] == code
