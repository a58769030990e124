"""What has this rank been told, and may its attempt go on?

Everything another process can say to a rank ends up here: the gateway's notices, grants passed on by rank 0, requests
to drain. The state is level-triggered: whoever is about to wait asks ``lost`` first, so a loss that was told while
nobody waited is not missed. Writers are watcher threads, the reader is the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from configs.protocol import Grant, Kind, Notice
from configs.words import RUNNING_BITS, DiscardReason, Lineage

T = TypeVar("T")


class AttemptOver(Exception):
    """The attempt cannot end in a commit of this group; it is discarded."""

    def __init__(self, reason: DiscardReason, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


class Signals:
    """The told state of one rank."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._dead: dict[tuple[str, int], str] = {}
        self._over: set[int] = set()
        self._grants: list[Grant] = []
        self._drain = False
        self.epoch = 0
        self.ended: Lineage | None = None

    def notice(self, notice: Notice) -> None:
        """Take in what the gateway says. Facts only accumulate: dead stays dead."""
        with self._condition:
            self.epoch = max(self.epoch, notice.epoch)
            for dead in notice.dead:
                self._dead[dead.group, dead.incarnation] = f"{dead.cause}: {dead.reason}" if dead.reason else dead.cause
            self._over.update(notice.over)
            self.ended = self.ended or notice.ended
            self._condition.notify_all()

    def grant(self, grant: Grant) -> None:
        """A grant passed on by rank 0."""
        with self._condition:
            self._grants.append(grant)
            self._condition.notify_all()

    def drain(self) -> None:
        """A request to leave on purpose. May be called in a signal handler: the lock is reentrant."""
        with self._condition:
            self._drain = True
            self._condition.notify_all()

    @property
    def draining(self) -> bool:
        return self._drain

    def lost(self, grant: Grant) -> AttemptOver | None:
        """Why the attempt of ``grant`` is over, if it is."""
        for member in grant.members:
            cause = self._dead.get((member.group, member.incarnation))
            if cause is not None:
                return AttemptOver(DiscardReason.PEER_LOST, f"{member.group}.{member.incarnation} {cause}")
        if grant.attempt in self._over:
            return AttemptOver(DiscardReason.COLLECTIVE_ERROR, "a participant moved on without this attempt's commit")
        return None

    def restarted(self, grant: Grant) -> bool:
        """Whether the gateway that gave ``grant`` has been replaced since."""
        return self.epoch > grant.quorum_id >> RUNNING_BITS

    def wait(self, future: Future[T], *, over: Callable[[], AttemptOver | None]) -> T:
        """The result of a blocking call that runs beside this thread, or the reason why it is not worth waiting for.

        Raises whatever the call raised, or what ``over`` returns.
        """
        future.add_done_callback(lambda _: self._wake())
        with self._condition:
            while not future.done():
                reason = over()
                if reason is not None:
                    raise reason
                self._condition.wait()
        return future.result()

    def wait_until(self, ready: Callable[[], bool], *, over: Callable[[], AttemptOver | None]) -> None:
        """Wait until something told makes ``ready`` true. Raises what ``over`` returns."""
        with self._condition:
            while not ready():
                reason = over()
                if reason is not None:
                    raise reason
                self._condition.wait()

    def next_grant(self, *, after: int, quorum_id: int) -> Grant:
        """The grant of ``quorum_id`` that rank 0 passes on, newer than attempt ``after``."""

        def found() -> Grant | None:
            return next((g for g in self._grants if g.attempt > after and g.quorum_id == quorum_id), None)

        self.wait_until(lambda: found() is not None, over=lambda: None)
        with self._condition:
            grant = found()
            assert grant is not None
            self._grants = [g for g in self._grants if g.attempt > grant.attempt]
            return grant

    def released(self, after: int) -> Grant | None:
        """The grant that releases this group from its seat, if there is one newer than attempt ``after``."""
        return next((g for g in self._grants if g.attempt > after and g.kind is Kind.RELEASE), None)

    def wait_until_either(self, future: Future[T], ready: Callable[[], bool]) -> None:
        """Wait until the call is done or something told makes ``ready`` true."""
        future.add_done_callback(lambda _: self._wake())
        self.wait_until(lambda: future.done() or ready(), over=lambda: None)

    def pause(self, seconds: float) -> None:
        """Sleep, but not past something told."""
        with self._condition:
            self._condition.wait(seconds)

    def pause_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until something told makes ``ready`` true, at most so long."""
        with self._condition:
            self._condition.wait_for(ready, seconds)

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()
