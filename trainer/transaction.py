"""The step is a transaction: agree, quorum, heal, plan, compute, reduce, vote; updated, skipped or discarded.

One path for one group or many, for the first step and for the last. Nothing of a discarded attempt remains: the step,
the cursor, the learning rate, the optimizer and the random state move in ``_commit`` alone.
"""

from __future__ import annotations

import dataclasses
import math
import time

from checkpointing.state import Clocks
from configs.protocol import Grant, Kind
from configs.words import DiscardReason, Exit, ExitRequest, Outcome
from replica_groups.channel import Channel
from replica_groups.plan import Plan, at_end, plan
from replica_groups.seat import Seating, Standing
from replica_groups.signals import AttemptOver
from trainer.compute import Summary
from trainer.join_price import JoinPrice
from trainer.optimizer import clip, gradient_norm, update
from trainer.parts import Parts
from trainer.phases import Phase
from trainer.sentinel import Diverged, Doubt, heaviest
from trainer.state import StateKeeper


class Transaction:
    """The attempts of one rank."""

    def __init__(self, parts: Parts, state: StateKeeper) -> None:
        self._parts = parts
        self._state = state
        self._fresh = False
        self._began = self._seated = time.monotonic()
        self._joins = JoinPrice()

    def attempt(self) -> None:
        """One attempt, to its outcome. Raises ExitRequest when this incarnation or the run is at its end."""
        p, state = self._parts, self._state
        self._began = time.monotonic()
        p.failpoints.step = state.clocks.step
        p.phases.enter(Phase.QUORUM)
        p.failpoints("agree")
        standing = p.seat.agree(self._standing())
        p.failpoints("quorum_before")
        seating = p.seat.quorum(standing, disk=state.on_disk)
        self._seated = time.monotonic()
        p.failpoints("quorum_after")
        grant = seating.grant
        p.sink(
            "quorum",
            step=grant.current.step,
            attempt=grant.attempt,
            quorum_id=grant.quorum_id,
            epoch=grant.quorum_id >> 32,
            lineage=str(grant.current),
            participants=list(grant.names),
            healing=list(grant.healing),
            seconds=time.monotonic() - self._began,
        )
        state.settle(grant)
        if grant.kind is not Kind.TRAIN:
            self._close(seating)
        else:
            self._train(seating)

    def _train(self, seating: Seating) -> None:
        p, state = self._parts, self._state
        work: Plan | None = None
        summary: Summary | None = None
        over: AttemptOver | None = None
        try:
            channel = self._ready(seating)
            p.sentinel.look(seating.grant, whole=state.whole)
            work = self._plan(seating.grant)
            p.compute.share(work, step=state.clocks.step, channel=channel)
            summary = p.compute.reduce(work, seating, channel, checksum=p.sentinel.sum())
            sums = dict(zip(seating.grant.names, summary.checksums, strict=True))
            p.sentinel.compare(sums, seating, channel)
            state.agreed(sums[p.group] if state.whole else None)
        except AttemptOver as reason:
            over = reason
        state.close_window()
        p.phases.enter(Phase.VOTE)
        p.failpoints("vote_before")
        if not p.seat.vote(step=seating.grant.current.step, complete=over is None):
            over = over or AttemptOver(
                DiscardReason.VOTE_FAILED, "another rank of this group does not hold the summary"
            )
            p.seat.abandon()
            self._discard(over, grant=seating.grant)
            self._doubt(heaviest(over))
            return
        assert summary is not None
        assert work is not None
        p.failpoints("vote_after")
        self._commit(seating, work, summary)

    def _ready(self, seating: Seating) -> Channel:
        """Connect and hold the current state, or be over, together with all ranks of the group.

        The ranks decide it in one collective, because whoever goes on meets the others in FSDP's collectives.
        """
        p = self._parts
        over: AttemptOver | None = None
        channel: Channel | None = None
        try:
            channel = p.seat.connect(seating)
        except AttemptOver as reason:
            over = reason
        if seating.grant.restore is not None:
            p.seat.together(over)  # all ranks read the disk together, or none does
        if over is None:
            try:
                self._state.take(seating)
            except AttemptOver as reason:
                over = reason
        p.seat.together(over)
        assert channel is not None
        self._state.taken(seating)
        return channel

    def _plan(self, grant: Grant) -> Plan:
        p, cursor = self._parts, self._state.clocks.cursor
        if cursor % p.shape.samples:
            text = f"the state is at sample {cursor}, no whole number of microbatches of {p.shape.samples} samples"
            raise ExitRequest(Exit.CHECKPOINT, f"{text}: go on with the local_batch_size and ranks it was made with")
        work = plan(cursor=cursor, shape=p.shape, participants=grant.names, up_to_date=grant.up_to_date)
        ahead = plan(
            cursor=cursor + p.shape.samples * work.microbatches,
            shape=p.shape,
            participants=grant.names,
            up_to_date=grant.names,
        )
        p.loader.plan([*work.shares[p.group], *ahead.shares[p.group]])
        return work

    def _commit(self, seating: Seating, work: Plan, summary: Summary) -> None:
        p, state, grant = self._parts, self._state, seating.grant
        p.phases.enter(Phase.OPTIMIZER)
        p.failpoints("optimizer")
        norm: float | None = None
        outcome = Outcome.SKIPPED
        lr = p.schedule.at(state.clocks.step)
        if not summary.flagged and summary.tokens:
            p.reducer.deliver(scale=work.planned_tokens / summary.tokens)
            found = gradient_norm(p.params)
            if math.isfinite(found):  # the sums are the same bits everywhere, and so is this decision
                norm = found
                clip(p.params, norm=norm, max_norm=p.max_norm)
                update(p.optimizer, lr=lr)
                outcome = Outcome.UPDATED
        p.reducer.drop(abandoned=False)
        state.clocks = advance(state.clocks, work=work, summary=summary, outcome=outcome, quorum_id=grant.quorum_id)
        state.committed(state.clocks.lineage)
        digest = state.digest() if self._digest_due() else None
        loss = summary.loss_sum * work.planned_tokens / summary.tokens if summary.tokens else None
        phases = p.phases.take(next_phase=Phase.CHECKPOINT_STALL)
        fields = {
            "step": state.clocks.step,
            "attempt": grant.attempt,
            "quorum_id": grant.quorum_id,
            "lineage": str(state.clocks.lineage),
            "participants": list(grant.names),
            "healing": list(grant.healing),
            "shares": {group: list(share) for group, share in work.shares.items()},
            "outcome": outcome.value,
            "samples": work.samples,
            "tokens": summary.tokens,
            "loss": loss,
            "grad_norm": norm,
            "lr": lr,
            "cursor": state.clocks.cursor,
            "seconds": time.monotonic() - self._began,
            "digest": digest,
            "check_s": p.sentinel.seconds,
            "join_stall_s": self._joins.of(phases, healing=bool(grant.healing), behind=p.group in grant.healing),
            "phases": phases,
        }
        took = None if grant.healing else time.monotonic() - self._seated
        p.vitals.attempt_took(took, step=state.clocks.step, tokens=state.clocks.tokens)
        p.sink("commit", **fields)  # before that state is served or published
        holds = p.group in grant.up_to_date
        state.save(rank=seating.rank, size=seating.size, holds=holds, holders=len(grant.up_to_date))
        p.phases.enter(Phase.OTHER)
        if state.clocks.skips >= p.nonfinite_limit:
            state.disk.drain()
            raise ExitRequest(Exit.NONFINITE, f"{state.clocks.skips} steps in a row had a non-finite gradient")

    def _discard(self, over: AttemptOver, *, grant: Grant) -> None:
        """Nothing moves; the next attempt computes the same microbatches."""
        p = self._parts
        p.reducer.drop(abandoned=True)
        self._fresh = True
        p.sink(
            "discard",
            step=self._state.clocks.step,
            attempt=grant.attempt,
            quorum_id=grant.quorum_id,
            reason=over.reason.value,
            why=over.text,
            waited_s=p.phases.so_far(Phase.REDUCE),
            phases=p.phases.take(next_phase=Phase.OTHER, discarded=True),
        )

    def _doubt(self, found: Diverged | None) -> None:
        """Groups of one lineage differ: tell it, and use my state no more if it may be the wrong one."""
        if found is None:
            return
        p, state = self._parts, self._state
        p.sink(
            "divergence", step=state.clocks.step, groups=list(found.groups), tensors=list(found.tensors), why=found.text
        )
        if found.doubt is Doubt.FIRST:
            raise ExitRequest(Exit.CHECKPOINT, found.text)
        if found.doubt is not Doubt.NONE:
            state.distrust(disputed=found.doubt is Doubt.DISPUTED)

    def _standing(self) -> Standing:
        p, state = self._parts, self._state
        fresh, self._fresh = self._fresh, False
        clocks = state.clocks
        ended = at_end(step=clocks.step, cursor=clocks.cursor, steps=p.steps, shape=p.shape)
        return Standing(
            lineage=state.clocks.lineage,
            void=state.void,
            drain=p.signals.draining,
            finished=ended and not state.void,
            fresh=fresh,
            disputed=state.disputed,
        )

    def _digest_due(self) -> bool:
        step = self._state.clocks.step
        every = self._parts.digest_interval
        return every > 0 and (step % every == 0 or step == self._parts.steps)

    def _close(self, seating: Seating) -> None:
        """The end of the run, or a drain. Raises ExitRequest, unless the closing quorum fell apart."""
        try:
            self._end(seating)
        except ExitRequest:
            self._parts.failpoints("shutdown")
            raise

    def _end(self, seating: Seating) -> None:
        p, state, grant = self._parts, self._state, seating.grant
        p.phases.enter(Phase.DRAINING)
        if grant.kind is Kind.RELEASE:
            state.disk.drain()
            raise ExitRequest(Exit.DRAINED, "drained")
        p.failpoints("closing")
        try:
            p.seat.together(p.signals.lost(grant))
            if grant.restore is None and len(grant.up_to_date) > 1:
                self._compare_last(seating)
        except AttemptOver as over:
            self._discard(over, grant=grant)
            self._doubt(heaviest(over))
            return
        try:
            if grant.up_to_date[0] == p.group:
                state.restore_if_asked(grant)
                state.save_last()
                if grant.kind is Kind.LEAVE:
                    raise ExitRequest(Exit.DRAINED, "drained; the last state is saved")
                state.export_last()
                p.report_end(grant.current)
            p.signals.wait_until(lambda: p.signals.ended is not None, over=lambda: p.signals.lost(grant))
        except AttemptOver as over:
            self._discard(over, grant=grant)
            return
        raise ExitRequest(Exit.DONE, f"the run is complete at step {grant.current.step}")

    def _compare_last(self, seating: Seating) -> None:
        """Nothing is computed any more that would show whether the groups agree on the last state. Raises
        AttemptOver."""
        p = self._parts
        over: AttemptOver | None = None
        channel: Channel | None = None
        try:
            channel = p.seat.connect(seating)
        except AttemptOver as reason:
            over = reason
        p.seat.together(over)
        assert channel is not None
        self._state.agreed(p.sentinel.closing(seating, channel))


def advance(clocks: Clocks, *, work: Plan, summary: Summary, outcome: Outcome, quorum_id: int) -> Clocks:
    """The clocks after a commit. They have no other owner."""
    return dataclasses.replace(
        clocks,
        step=clocks.step + 1,
        cursor=clocks.cursor + work.samples,
        tokens=clocks.tokens + summary.tokens,
        skips=0 if outcome is Outcome.UPDATED else clocks.skips + 1,
        quorum_id=quorum_id,
    )
