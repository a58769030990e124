"""What a rank was told counts, whether or not anybody waited when it was said."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from configs.protocol import Kind, Notice
from configs.words import DiscardReason, Lineage
from replica_groups.signals import AttemptOver, Signals
from tests.support.grants import EPOCH, death, grant, quorum_id

PAIR = grant("g0", "g1", attempt=4, running=3)


@pytest.fixture
def signals() -> Signals:
    return Signals()


@pytest.fixture
def beside():
    with ThreadPoolExecutor() as pool:
        yield pool


def test_loss_told_before_the_wait_ends_it(signals):
    signals.notice(death("g1"))
    with pytest.raises(AttemptOver) as caught:
        signals.wait(Future(), over=lambda: signals.lost(PAIR))
    assert caught.value.reason is DiscardReason.PEER_LOST
    assert "g1.1 exited" in caught.value.text


def test_loss_told_during_the_wait_ends_it(signals, beside):
    asked = threading.Event()

    def over():
        asked.set()
        return signals.lost(PAIR)

    waiting = beside.submit(signals.wait, Future(), over=over)
    assert asked.wait(10)
    signals.notice(death("g1"))
    with pytest.raises(AttemptOver):
        waiting.result(10)


def test_dead_stays_dead_when_a_later_notice_no_longer_names_it(signals):
    signals.notice(death("g1"))
    signals.notice(Notice(epoch=EPOCH))
    assert signals.lost(PAIR) is not None


def test_attempt_that_is_over_stays_over():
    signals = Signals()
    signals.notice(Notice(epoch=EPOCH, over=(4,)))
    signals.notice(Notice(epoch=EPOCH, over=(5,)))
    assert signals.lost(PAIR) is not None


def test_another_incarnation_of_a_dead_group_is_no_loss(signals):
    signals.notice(death("g1", incarnation=0))
    signals.notice(death("g2"))
    assert signals.lost(PAIR) is None


def test_attempt_that_a_member_moved_on_from_is_over(signals):
    signals.notice(Notice(epoch=EPOCH, over=(3, 4)))
    over = signals.lost(PAIR)
    assert over is not None
    assert over.reason is DiscardReason.COLLECTIVE_ERROR
    assert signals.lost(grant("g0", "g1", attempt=5)) is None


def test_wait_gives_the_result_or_the_error_of_the_call(signals, beside):
    assert signals.wait(beside.submit(lambda: 7), over=lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        signals.wait(beside.submit(lambda: 1 // 0), over=lambda: None)


def test_call_that_is_done_wins_over_a_loss(signals):
    """Whoever holds the summary commits, whatever it hears afterwards."""
    signals.notice(death("g1"))
    done: Future[str] = Future()
    done.set_result("summary")
    assert signals.wait(done, over=lambda: signals.lost(PAIR)) == "summary"


def test_call_that_ends_during_the_wait_wakes_it(signals, beside):
    call: Future[int] = Future()
    asked = threading.Event()

    def over():
        asked.set()

    waiting = beside.submit(signals.wait, call, over=over)
    assert asked.wait(10)
    call.set_result(3)
    assert waiting.result(10) == 3


def test_grant_passed_on_before_it_is_waited_for_is_found(signals):
    signals.grant(PAIR)
    assert signals.next_grant(after=3, quorum_id=PAIR.quorum_id) == PAIR


def test_grant_is_found_by_attempt_and_quorum_id(signals, beside):
    old = grant("g0", "g1", attempt=3, running=3)
    other = grant("g0", "g1", attempt=5, running=9)
    waiting = beside.submit(signals.next_grant, after=3, quorum_id=PAIR.quorum_id)
    for told in (old, other, PAIR):
        signals.grant(told)
    assert waiting.result(10) == PAIR
    assert signals.next_grant(after=4, quorum_id=quorum_id(9)) == other  # later grants are kept


def test_release_is_seen_once_it_is_newer_than_the_last_attempt(signals):
    released = grant("g0", attempt=6, kind=Kind.RELEASE)
    signals.grant(PAIR)
    signals.grant(released)
    assert signals.released(5) == released
    assert signals.released(6) is None


def test_drain_and_end_are_never_unsaid(signals):
    end = Lineage(9, quorum_id(2))
    signals.drain()
    signals.notice(Notice(epoch=EPOCH, ended=end))
    signals.notice(Notice(epoch=EPOCH))
    assert signals.draining
    assert signals.ended == end


def test_drain_asked_for_here_counts_too(signals):
    assert not signals.draining
    signals.drain()
    assert signals.draining


def test_epoch_is_the_greatest_one_seen(signals):
    assert not signals.restarted(PAIR)
    signals.notice(Notice(epoch=EPOCH + 1))
    signals.notice(Notice(epoch=EPOCH))
    assert signals.epoch == EPOCH + 1
    assert signals.restarted(PAIR)


def test_wait_until_either_ends_with_what_was_told(signals, beside):
    waiting = beside.submit(signals.wait_until_either, Future(), lambda: signals.restarted(PAIR))
    signals.notice(Notice(epoch=EPOCH + 1))
    waiting.result(10)


def test_pause_until_ends_with_what_was_told(signals, beside):
    waiting = beside.submit(signals.pause_until, lambda: signals.lost(PAIR) is not None, 3600)
    signals.notice(death("g1"))
    waiting.result(10)
