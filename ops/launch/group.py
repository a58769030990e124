"""Who keeps one group alive?

The first rank that ends ends the group: the lighthouse is told at once, so that the survivors do not wait; fellows that
do not end by themselves are killed; ``policy.restart_decision`` says whether and when all ranks start again, as a new
incarnation. One supervisor per group, each on a thread of its own; requests from other threads (drain, stop, kill) come
over a socket so that every wait hears them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from configs.run_folder import EventSink, RunFolder
from configs.words import DepartureCause, Exit
from ops.launch.life import Layout, Life, last_lines, reap, start_life, take_codes
from ops.launch.policy import (
    ORDERLY,
    Ending,
    Next,
    Policy,
    describe_code,
    group_code,
    restart_decision,
    settle_s,
)
from ops.launch.ranks import RankFunction
from ops.launch.warm import Child, Warm, wait_for

POLL_S = 0.1
"""How often the group's log is looked at while its first share after a restart is awaited."""

Leave = Callable[..., object]
"""Called as ``leave(group=, life=, cause=, reason=)``; must return at once."""
Recovered = Callable[[str, str, float | None], None]
"""Called as ``recovered(group, reason, seconds)`` for every restart, once it is known what came of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupEnd:
    """How a group left for good."""

    group: str
    code: int
    reason: str
    ends_run: bool = False
    lead_code: int | None = None
    """Rank 0's own exit code, where it ran here and ended by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a supervisor is given from outside."""

    folder: RunFolder
    warm: Warm
    function: RankFunction
    config: Any
    policy: Policy
    grace_s: float
    sink: EventSink
    say: Callable[[str], None]
    leave: Leave
    recovered: Recovered = lambda group, reason, seconds: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Death:
    """How a life ended: the code that speaks for it, the rank it is of, and when the first rank ended or was killed."""

    code: int
    rank: int
    t: float
    lead_code: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Restart:
    """A restart of which it is not yet known what came."""

    died_t: float
    t: float
    incarnation: int | None
    code: int
    delay_s: float


class GroupSupervisor:
    """Starts, watches and replaces one group's ranks on this machine."""

    def __init__(self, layout: Layout, surroundings: Surroundings) -> None:
        self.group = layout.group
        self._layout = layout
        self._around = surroundings
        self._lock = threading.Lock()
        self._life: Life | None = None
        self._killed_t: float | None = None
        self._draining = False
        self._stopped = False
        self._run_done = False
        self._held = False
        self._buried: dict[int, str] = {}
        self._open: _Restart | None = None
        self._hear, self._speak = socket.socketpair()
        self._hear.setblocking(False)
        self._speak.setblocking(False)

    def run(self) -> GroupEnd:
        """Keep the group alive until it is done, drained or not worth starting again."""
        history: list[Ending] = []
        while (end := self._end_between_lives()) is None:
            life = self._begin()
            death = self._watch(life)
            self._account(life)
            history.append(Ending(code=death.code, committed=life.log.committed))
            decision, reason = restart_decision(history, self._around.policy, draining=self._draining or self._stopped)
            if decision.next is Next.RUN_OVER and (why := self._last_word(life, death)):
                reason = f"{describe_code(death.code)}: {why}"
            self._tell_end(life, death, reason)
            if decision.next is not Next.RESTART:
                ends_run = decision.next is Next.RUN_OVER
                return GroupEnd(
                    group=self.group,
                    code=decision.code,
                    reason=reason,
                    ends_run=ends_run,
                    lead_code=death.lead_code,
                )
            if not self._run_done:
                self._pause(decision.delay_s)
            self._open = _Restart(
                died_t=death.t,
                t=time.time(),
                incarnation=life.log.incarnation,
                code=death.code,
                delay_s=decision.delay_s,
            )
        self._account(None)
        return end

    # Requests, from any thread.

    def drain(self) -> None:
        """Ask the group to leave at a commit boundary; after the grace it is killed. It is not started again."""
        self._draining = True
        self._wake()

    def stop(self) -> None:
        """Kill the group; it is not started again."""
        self._stopped = True
        self._wake()

    def run_is_done(self) -> None:
        """Another group has reached the end of the run: a life that would start now has nothing to do."""
        self._run_done = True
        self._wake()

    def strike(self, number: int, *, rank: int | None = None, announce: Callable[[], object] = lambda: None) -> bool:
        """Send a signal to every rank, or to one, as a fault; a group that is killed starts again. ``announce`` is
        called first. False when the group has no life at this moment."""
        with self._lock:
            if self._life is None:
                return False
            announce()
            if number == signal.SIGKILL:
                self._killed_t = time.time()
            self._life.signal_all(number, rank=rank)
            return True

    def hold(self, held: bool) -> None:
        """The group's node is gone: no further life is started. Or it is back."""
        self._held = held
        self._wake()

    def end_incarnation(self, incarnation: int, reason: str) -> None:
        """The lighthouse has buried this incarnation: end what is left of it, so that its successor can start. A
        process that is stopped would otherwise never hear of it."""
        self._buried[incarnation] = reason
        self._wake()

    # The life of a life.

    def _begin(self) -> Life:
        around = self._around
        life = start_life(
            layout=self._layout,
            folder=around.folder,
            warm=around.warm,
            function=around.function,
            config=around.config,
        )
        with self._lock:
            self._life, self._killed_t = life, None
        return life

    def _watch(self, life: Life) -> _Death:
        """Wait until the life is over, and end what is left of it."""
        codes: dict[int, int] = {}
        died_t: float | None = None
        running = dict(life.ranks)
        drain_until: float | None = None
        end_at: float | None = None
        stopped_until: float | None = None
        while running:
            self._hear_requests()
            self._end_buried(life)
            now = time.monotonic()
            if self._draining and drain_until is None:
                drain_until = now + self._around.grace_s
                life.ask_to_drain()
            stopped_until = self._stopped_too_long(running, stopped_until, now)
            limits = [t for t in (end_at, drain_until, stopped_until) if t is not None]
            if self._stopped or (limits and min(limits) <= now):
                break
            timeouts = [t - now for t in limits] + ([POLL_S] if self._open or self._run_done else [])
            ended = wait_for(list(running.values()), min(timeouts, default=None), self._hear)
            fresh = take_codes(running, ended)
            if fresh and not codes:
                died_t = time.time()
                end_at = time.monotonic() + self._first_death(life, fresh)
            codes.update(fresh)
            self._account_recovery(life)
        with self._lock:
            self._life = None
            died_t = self._killed_t or died_t or time.time()
        life.signal_all(signal.SIGKILL)
        reap(running)
        code, rank = group_code(codes) if codes else (-signal.SIGKILL, min(life.ranks))
        lead = codes.get(0, -1)
        return _Death(code=code, rank=rank, t=died_t, lead_code=lead if lead >= 0 else None)

    def _stopped_too_long(self, running: Mapping[int, Child], until: float | None, now: float) -> float | None:
        """When to end a rank that a signal has stopped: after the run's end nobody else misses it."""
        if not self._run_done or not any(child.stopped for child in running.values()):
            return None
        return now + self._around.grace_s if until is None else until

    def _end_buried(self, life: Life) -> None:
        if self._buried:
            life.log.read()
            reason = self._buried.pop(life.log.incarnation or 0, None)
            if reason is not None:
                self._around.say(f"{self.group}.{life.log.incarnation}: {reason}")
                life.signal_all(signal.SIGKILL)

    def _first_death(self, life: Life, codes: dict[int, int]) -> float:
        """Tell the lighthouse, and say how long the fellows may take to end by themselves."""
        code, rank = group_code(codes)
        if code not in ORDERLY:
            cause = DepartureCause.KILLED if code < 0 else DepartureCause.EXITED
            self._around.leave(
                group=self.group, life=life.name, cause=cause, reason=f"rank {rank}: {describe_code(code)}"
            )
        return settle_s(code, grace_s=self._around.grace_s)

    def _end_between_lives(self) -> GroupEnd | None:
        """Why no further life is started, if so. Waits while the group is held."""
        while self._held and not (self._stopped or self._draining or self._run_done):
            wait_for([], None, self._hear)
            self._hear_requests()
        if self._stopped:
            return GroupEnd(group=self.group, code=Exit.INTERRUPTED, reason="stopped")
        if self._draining:
            return GroupEnd(group=self.group, code=Exit.DRAINED, reason="stopped between two lives")
        if self._run_done:
            return GroupEnd(group=self.group, code=Exit.DONE, reason="the run has ended")
        return None

    # What is told.

    def _tell_end(self, life: Life, death: _Death, reason: str) -> None:
        around, incarnation = self._around, life.log.incarnation
        around.sink("exit", t=death.t, group=self.group, incarnation=incarnation, code=death.code, reason=reason)
        name = self.group if incarnation is None else f"{self.group}.{incarnation}"
        around.say(f"{name}: {reason}")
        if death.code > 0 and death.code not in ORDERLY:
            lines = last_lines(around.folder, group=self.group, incarnation=incarnation, rank=death.rank)
            for line in lines:
                around.say(f"  {name} rank {death.rank} | {line}")

    def _last_word(self, life: Life, death: _Death) -> str:
        """Why the group ended, by its own log or, before it had one, by the last line that the rank printed."""
        if life.log.exit_reason:
            return life.log.exit_reason
        found = last_lines(self._around.folder, group=self.group, incarnation=None, rank=death.rank, count=1)
        prefix = f"exit {death.code}: "
        return found[0].removeprefix(prefix) if found and found[0].startswith(prefix) else ""

    def _account_recovery(self, life: Life) -> None:
        """Close the open restart once the successor has committed a share of its own."""
        if self._open is not None:
            life.log.read()
            if life.log.first_share_t is not None:
                self._close_restart(life.log.first_share_t - self._open.died_t)

    def _account(self, life: Life | None) -> None:
        """At the end of a life: read its log to the end, and close the restart that it came of."""
        if life is not None:
            life.log.read()
            self._account_recovery(life)
        if self._open is not None:
            self._close_restart(None)

    def _close_restart(self, recovery_s: float | None) -> None:
        restart, self._open = self._open, None
        if restart is None:
            return
        reason = describe_code(restart.code)
        self._around.sink(
            "restart",
            t=restart.t,
            group=self.group,
            incarnation=restart.incarnation,
            reason=reason,
            code=restart.code,
            recovery_s=recovery_s,
            delay_s=restart.delay_s,
        )
        self._around.recovered(self.group, reason, recovery_s)

    # Waiting.

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake already
            self._speak.send(b"!")

    def _hear_requests(self) -> None:
        """Forget what woke us; the flags say what is asked."""
        with contextlib.suppress(BlockingIOError):
            while self._hear.recv(64):
                pass

    def _pause(self, seconds: float) -> None:
        """Wait before the next life, but not past a request."""
        if seconds > 0 and not (self._draining or self._stopped):
            wait_for([], seconds, self._hear)
