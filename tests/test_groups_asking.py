"""Asking for a quorum: the gateway's grant and torchft's answer are one, or the incarnation is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import replica_groups.seat
from configs.protocol import Claim, Grant, Kind, Notice, Offer, QuorumLost, Unreachable
from configs.words import SCRATCH, DiscardReason, Exit, ExitRequest, Lineage
from replica_groups.channel import Beside, Channel
from replica_groups.seat import Limits, Seat, Standing
from replica_groups.signals import AttemptOver, Signals
from tests.support.grants import EPOCH, death, grant, quorum_id, seating

LIMIT_S = 10
STANDING = Standing(lineage=SCRATCH, void=True, drain=False, finished=False, fresh=True)
PAIR = grant("g0", "g1", attempt=4, running=3)


class Client:
    """torchft's client: answers when the test says."""

    def __init__(self, *_: object) -> None:
        self.answer: Future[Any] = Future()

    def _quorum(self, **asked: Any) -> Any:
        return self.answer.result(2 * LIMIT_S)

    def reply(self, to: Grant, **changes: Any) -> None:
        usual = {
            "quorum_id": to.quorum_id,
            "replica_ids": [m.replica_id for m in to.members],
            "replica_rank": 1,
            "store_address": "there",
        }
        self.answer.set_result(SimpleNamespace(**{**usual, **changes}))


class Gateway:
    """The coordinator of rank 0: says one thing after the other."""

    def __init__(self, *answers: Grant | Exception) -> None:
        self.answers = list(answers)
        self.claims: list[Claim] = []
        self.last = threading.Event()

    def ask(self, claim: Claim) -> Grant:
        self.claims.append(claim)
        answer = self.answers.pop(0)
        if not self.answers:
            self.last.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def signals() -> Signals:
    return Signals()


@pytest.fixture
def seat(monkeypatch, signals):
    """Makes the seat of rank 0 (with a gateway) or of another rank."""
    monkeypatch.setattr(replica_groups.seat, "ManagerClient", Client)

    def make(gateway: Gateway | None) -> Seat:
        return Seat(
            group="g0",
            incarnation=1,
            rank=0 if gateway else 1,
            world=2,
            backend="gloo",
            manager_address="",
            signals=signals,
            beside=Beside(),
            limits=Limits(quorum_s=1, connect_s=1, collective_s=1, vote_s=1),
            coordinator=gateway,
            hub=None,
            failpoint=lambda *_: None,
            transfer=("there:1", "there:2"),
        )

    return make


@pytest.fixture
def beside():
    with ThreadPoolExecutor() as pool:
        yield pool


def test_claim_says_what_the_ranks_agreed_on(seat):
    gateway = Gateway(PAIR)
    made = seat(gateway)
    made._client.reply(PAIR)
    disk = (Lineage(9, quorum_id(1)),)
    answer = made.quorum(STANDING, disk=lambda: Offer(disk=disk))
    assert (answer.grant, answer.rank, answer.size, answer.store_address) == (PAIR, 1, 2, "there")
    (claim,) = gateway.claims
    assert claim == Claim(
        group="g0",
        incarnation=1,
        lineage=SCRATCH,
        void=True,
        fresh=True,
        disk=disk,
        transfer=("there:1", "there:2"),
    )


@pytest.mark.parametrize(
    "changes", [{"quorum_id": quorum_id(4)}, {"replica_ids": ["g0:1"]}, {"replica_ids": ["g1:1", "g0:1"]}]
)
def test_answers_that_differ_end_the_incarnation(seat, changes):
    made = seat(Gateway(PAIR))
    made._client.reply(PAIR, **changes)
    with pytest.raises(ExitRequest, match="torchft answered") as caught:
        made.quorum(STANDING)
    assert caught.value.code is Exit.INCARNATION_OVER


def test_lighthouse_that_is_away_is_asked_again_until_it_is_back(seat, monkeypatch):
    monkeypatch.setattr(replica_groups.seat, "_RETRY_S", 0.001)
    gateway = Gateway(*[Unreachable("gone")] * 5, PAIR)
    made = seat(gateway)
    made._client.reply(PAIR)
    looks = iter(range(6))
    assert made.quorum(STANDING, disk=lambda: Offer(disk=(Lineage(next(looks), 1),))).grant == PAIR
    assert [claim.disk[0].step for claim in gateway.claims] == list(range(6)), "the disk is looked at each time"


def test_who_cannot_bring_what_is_asked_for_says_so_and_ends_with_6_if_nobody_can(seat):
    gateway = Gateway(QuorumLost("nobody brings it"), QuorumLost("1 of at least 2 groups"))
    made = seat(gateway)
    with pytest.raises(ExitRequest, match="step 4 is not here; nobody brings it") as caught:
        made.quorum(STANDING, disk=lambda: Offer(unmet="step 4 is not here"))
    assert caught.value.code is Exit.CHECKPOINT
    with pytest.raises(QuorumLost, match="1 of at least 2 groups"):
        made.quorum(STANDING)
    assert [claim.needs_state for claim in gateway.claims] == [True, False]


def test_older_lighthouse_is_not_obeyed(seat, signals):
    signals.notice(Notice(epoch=EPOCH + 1))
    made = seat(Gateway(PAIR))
    made._client.reply(PAIR)
    with pytest.raises(ExitRequest, match="older than epoch") as caught:
        made.quorum(STANDING)
    assert caught.value.code is Exit.INCARNATION_OVER


def test_gateway_replaced_between_grant_and_torchfts_answer_is_asked_again(seat, signals, beside):
    newer = Grant(**{**PAIR.__dict__, "attempt": 9, "quorum_id": PAIR.quorum_id + (1 << 32)})
    gateway = Gateway(PAIR, newer)
    made = seat(gateway)
    made._hub = Hub(lambda: signals.notice(Notice(epoch=EPOCH + 1)))  # it is replaced right after its grant
    asking = beside.submit(made.quorum, STANDING)
    assert gateway.last.wait(LIMIT_S)
    made._client.reply(newer)
    assert asking.result(LIMIT_S).grant == newer


class Hub:
    """Lifelines of rank 0 on which the first grant sets something off."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def broadcast(self, message: dict[str, Any]) -> None:
        self.then()


def test_release_needs_no_answer_of_torchft(seat, beside):
    released = grant("g0", attempt=5, kind=Kind.RELEASE)
    made = seat(Gateway(released))
    assert beside.submit(made.quorum, STANDING).result(LIMIT_S).grant == released
    made._client.reply(released)  # lets the call beside end


def test_other_ranks_take_the_grant_that_rank_0_passes_on(seat, signals):
    made = seat(None)
    stale = grant("g0", "g1", attempt=3, running=2)
    for told in (stale, PAIR):
        signals.grant(told)
    made._client.reply(PAIR)
    assert made.quorum(STANDING).grant == PAIR


def test_grant_that_comes_after_torchfts_answer_is_waited_for(seat, signals, beside):
    made = seat(None)
    made._client.reply(PAIR)
    asking = beside.submit(made.quorum, STANDING)
    signals.grant(PAIR)
    assert asking.result(LIMIT_S).grant == PAIR


def test_other_ranks_hear_of_a_release_without_torchft(seat, signals, beside):
    made = seat(None)
    asking = beside.submit(made.quorum, STANDING)
    released = grant("g0", attempt=5, kind=Kind.RELEASE)
    signals.grant(released)
    assert asking.result(LIMIT_S).grant == released
    made._client.reply(released)


class Broken:
    """A process group whose sum fails; ``then`` is what happens at that moment."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self

    def wait(self) -> None:
        self.then()
        raise RuntimeError("connection reset by peer")


def test_broken_sum_is_a_discard(seat):
    with pytest.raises(AttemptOver) as caught:
        summed(seat(Gateway(PAIR)), lambda: None)
    assert caught.value.reason is DiscardReason.COLLECTIVE_ERROR
    assert "connection reset by peer" in caught.value.text


def test_loss_that_is_told_as_the_sum_breaks_explains_it(seat, signals, monkeypatch):
    """The socket's error may be first; the gateway knows why."""
    monkeypatch.setattr(signals, "wait", lambda future, *, over: future.result(LIMIT_S))
    with pytest.raises(AttemptOver) as caught:
        summed(seat(Gateway(PAIR)), lambda: signals.notice(death("g1")))
    assert caught.value.reason is DiscardReason.PEER_LOST


def summed(seat: Seat, then: Callable[[], None]) -> None:
    channel = Channel(process_group=Broken(then), quorum_id=PAIR.quorum_id, size=2)
    channel.post(torch.zeros(1))
    seat.finish(seating(PAIR), channel)


def test_loss_told_while_nobody_waited_ends_the_attempt_before_the_wait(seat, signals):
    made = seat(Gateway(PAIR))
    signals.notice(death("g1"))
    with pytest.raises(AttemptOver):
        made.check(seating(PAIR))
