"""The order of a grant: engine, decision once more, journal, events, answers. With an engine that waits or fails."""

import asyncio
import dataclasses
import os

import pytest

import lighthouse.quorums
from configs.protocol import Claim, Grant
from configs.words import SCRATCH, DepartureCause, Lineage
from lighthouse.engine import EngineError, requesters
from lighthouse.gateway import Gateway
from lighthouse.members import Life
from lighthouse.protos import torchft_pb2
from lighthouse.state import Journal, Participant
from lighthouse.waiting import Buried
from tests.support.lighthouse import terms

G0, G1 = Participant("g0", 1), Participant("g1", 1)


class FakeEngine:
    """Answers when it is let go; fails as often as it is told to."""

    made, failures = [], 0

    def __init__(self, torchft, *, members, quorum_id):
        self.members, self.quorum_id, self.closed = members, quorum_id, False
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()
        FakeEngine.made.append(self)

    async def quorum(self, asked):
        self.asked.set()
        await self.let_go.wait()
        if FakeEngine.failures:
            FakeEngine.failures -= 1
            raise EngineError("told to")
        return torchft_pb2.Quorum(quorum_id=self.quorum_id, participants=asked)

    async def close(self):
        self.closed = True


class Stage:
    """A gateway whose two groups have asked."""

    def __init__(self, path):
        self.journal, self.events = Journal(path), []
        self.gateway = Gateway(journal=self.journal, sink=self.sink, torchft=None)
        self.running = asyncio.create_task(self.gateway.run())
        for who in (G0, G1):
            self.gateway.join(terms(), Life(who=who))
            self.gateway.open_stream(who)

    def sink(self, event, **fields):
        self.events.append((event, fields, self.journal.state))

    def ask(self, who):
        claim = Claim(group=who.group, incarnation=who.incarnation, lineage=SCRATCH, void=True)
        asked = asyncio.create_task(self.gateway.ask(claim))
        member = torchft_pb2.QuorumMember(replica_id=str(who), world_size=1)
        return asked, asyncio.create_task(self.gateway.seat(who, member))

    async def engine(self, number):
        """The n-th engine, once it has been asked."""
        while len(FakeEngine.made) <= number:
            await asyncio.sleep(0)
        await FakeEngine.made[number].asked.wait()
        return FakeEngine.made[number]

    async def close(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.stop()
        self.journal.close()


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch):
    monkeypatch.setattr(lighthouse.quorums, "Engine", FakeEngine)
    FakeEngine.made, FakeEngine.failures = [], 0


def on_stage(folder, play):
    async def whole():
        stage = Stage(folder / "state")
        async with asyncio.timeout(30):
            await play(stage)
        await stage.close()

    asyncio.run(whole())


def test_a_grant_is_stored_before_it_is_told_and_told_to_both_protocols(tmp_path):
    async def play(stage):
        ask0, seat0 = stage.ask(G0)
        ask1, _ = stage.ask(G1)
        (await stage.engine(0)).let_go.set()
        grant = await ask0
        assert isinstance(grant, Grant)
        assert await ask1 == grant
        assert (await seat0).quorum_id == grant.quorum_id
        (told,) = [(fields, state) for event, fields, state in stage.events if event == "quorum"]
        assert told[1].attempt == told[0]["attempt"] == grant.attempt
        assert told[1].known == (G0, G1)

    on_stage(tmp_path, play)


def test_nobody_is_seated_with_a_member_that_died_while_the_engine_worked(tmp_path):
    async def play(stage):
        ask0, _ = stage.ask(G0)
        ask1, seat1 = stage.ask(G1)
        engine = await stage.engine(0)
        stage.gateway.leave("g1", 1, life="", cause=DepartureCause.KILLED, reason="just now")
        engine.let_go.set()
        assert await ask1 == Buried("just now")
        assert await seat1 == Buried("just now")
        await asyncio.sleep(0)
        assert not ask0.done()
        assert stage.gateway.quorums.last is None
        successor = Participant("g1", 2)
        stage.gateway.join(terms(), Life(who=successor))
        stage.gateway.open_stream(successor)
        stage.ask(successor)
        (await stage.engine(1)).let_go.set()
        assert [member.replica_id for member in (await ask0).members] == ["g0:1", "g1:2"]
        assert engine.closed

    on_stage(tmp_path, play)


def test_an_engine_that_fails_is_replaced_and_three_in_a_row_end_the_lighthouse(tmp_path):
    async def play(stage):
        FakeEngine.failures = 2
        ask0, _ = stage.ask(G0)
        stage.ask(G1)
        for number in range(3):
            (await stage.engine(number)).let_go.set()
        assert isinstance(await ask0, Grant)
        assert [engine.closed for engine in FakeEngine.made] == [True, True, False]

        FakeEngine.failures = 3
        for who in (G0, G1):
            stage.ask(who)
        for number in range(3, 5):
            (await stage.engine(number)).let_go.set()
        with pytest.raises(EngineError):
            await stage.running

    on_stage(tmp_path, play)


def test_a_request_taken_back_while_the_engine_worked_is_not_granted(tmp_path):
    async def play(stage):
        ask0, _ = stage.ask(G0)
        ask1, _ = stage.ask(G1)
        engine = await stage.engine(0)
        ask1.cancel()
        await asyncio.gather(ask1, return_exceptions=True)
        engine.let_go.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not ask0.done()
        assert stage.gateway.quorums.last is None

    on_stage(tmp_path, play)


def test_a_confirmed_event_lost_with_the_lighthouse_is_written_by_the_next(tmp_path):
    async def play(stage):
        state, events = stage.journal.state, []
        stage.journal.commit(dataclasses.replace(state, granted=Lineage(7, 9), confirmed_by=("g0",)))
        stage.journal.close()

        def sink(event, **fields):
            events.append((event, fields.get("step"), fields.get("participants")))

        for announced in ((), (Lineage(7, 9),)):
            journal = Journal(tmp_path / "state")
            Gateway(journal=journal, sink=sink, torchft=None, announced=announced)
            journal.close()
        assert events == [("confirmed", 7, ["g0"])]

    on_stage(tmp_path, play)


def test_torchft_sees_healers_one_step_behind_and_never_below_zero():
    requests = {who: torchft_pb2.QuorumMember(replica_id=str(who), step=3, shrink_only=True) for who in (G0, G1)}
    seen = requesters(requests, members=(G0, G1), holders=("g0",), step=8)
    assert [(member.step, member.shrink_only) for member in seen] == [(8, False), (7, False)]
    assert [member.step for member in requesters(requests, members=(G0, G1), holders=("g0",), step=0)] == [0, 0]


def test_a_burial_is_on_disk_before_anybody_is_told(tmp_path, monkeypatch):
    """When the disk has it nothing has been answered and no watcher has been woken; afterwards all of it has."""

    async def play(stage):
        ask0, _ = stage.ask(G0)
        ask1, seat1 = stage.ask(G1)
        (await stage.engine(0)).let_go.set()
        grant = await ask0
        await ask1
        ask1, seat1 = stage.ask(G1)
        await asyncio.sleep(0)
        seen, news, true_sync = [], stage.gateway.news(), os.fdatasync

        def fdatasync(fd):
            seen.append((news.is_set(), ask1.done(), seat1.done(), len(stage.events)))
            true_sync(fd)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        told = len(stage.events)
        stage.gateway.leave("g1", 1, life="", cause=DepartureCause.KILLED, reason="just now")
        assert seen == [(False, False, False, told)]
        assert news.is_set()
        assert [dead.group for dead in stage.gateway.notice(G0).dead] == ["g1"]
        assert await ask1 == Buried("just now")
        assert grant.names == ("g0", "g1")

    on_stage(tmp_path, play)
