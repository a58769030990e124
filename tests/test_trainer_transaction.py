"""The step is a transaction: a discarded attempt moves nothing, a skipped one only the clocks, an updated one all."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from configs.words import Exit, ExitRequest, Lineage, Outcome
from tests.support.grants import EPOCH, grant, quorum_id
from tests.support.stand_ins import SHAPE
from tests.support.training import SCHEDULE, Rig, bits, dropping, rig, world_of_one
from trainer.compute import Summary
from trainer.transaction import advance

PLACES = ("connect", "sums", "summary", "vote")


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def everything(made: Rig) -> dict[str, Any]:
    """All that a discarded attempt must not move."""
    return {
        "tensors": bits(made.state.tensors),
        "clocks": made.state.clocks,
        "rng": torch.get_rng_state().tolist(),
        "lr": [group["lr"] for group in made.parts.optimizer.param_groups],
        "hooks": len(made.hooks),
        "gradients": [p.grad for p in made.parts.params if p.grad is not None],
        "unconfirmed": made.state.unconfirmed,
        "saves": [told for told in made.disk.told if told[0] == "save"],
    }


@pytest.fixture(scope="module")
def undisturbed(_alone) -> list[str]:
    """Digests of steps 1 to 4 when nothing fails."""
    made = rig(digest_interval=1)
    made.attempt(4)
    return [commit["digest"] for commit in made.named("commit")]


@pytest.mark.parametrize("place", PLACES)
def test_discarded_attempt_moves_nothing_and_the_next_one_makes_the_same_state(place, undisturbed):
    made = rig(digest_interval=1)
    made.attempt(2)
    made.state.settle(grant(current=made.state.clocks.lineage))
    before = everything(made)
    made.seat.lose_at = place
    made.attempt()
    assert everything(made) == before
    (discard,) = made.named("discard")
    assert (discard["step"], discard["attempt"]) == (2, 3)
    assert discard["reason"] == ("vote_failed" if place == "vote" else "peer_lost")
    assert made.seat.abandoned == 1
    made.attempt(2)
    assert [commit["digest"] for commit in made.named("commit")] == undisturbed


@pytest.mark.parametrize("place", PLACES)
def test_every_rank_votes_even_when_its_attempt_is_over(place):
    """torchft's vote waits for all ranks of the group."""
    made = rig()
    made.seat.lose_at = place
    made.attempt()
    assert made.seat.votes == [place == "vote"]


def test_discarded_attempt_computes_the_same_microbatches_again():
    made = rig()
    made.seat.lose_at = "sums"
    made.attempt(2)
    assert made.text.asked == [0, 1, 2, 3] * 2


def test_after_a_discard_the_next_quorum_must_be_fresh_and_only_that_one():
    made = rig()
    made.seat.lose_at = "sums"
    made.attempt(3)
    assert [standing.fresh for standing in made.seat.standings] == [False, True, False]


def test_time_of_a_discarded_attempt_is_one_phase():
    made = rig()
    made.seat.lose_at = "sums"
    made.attempt()
    assert set(made.named("discard")[0]["phases"]) == {"starting", "discarded"}, "what came before is not lost"


def test_updated_moves_all_clocks_and_the_optimizer_once():
    made = rig()
    before = bits(made.state.tensors)
    made.attempt()
    clocks = made.state.clocks
    assert (clocks.step, clocks.cursor, clocks.skips, clocks.quorum_id) == (1, 8, 0, quorum_id(1))
    assert clocks.tokens == SHAPE.microbatches * SHAPE.samples * SHAPE.seq_len
    assert made.hooks == [1]
    after = bits(made.state.tensors)
    assert all(after[name] != before[name] for name in before)
    assert made.state.unconfirmed == clocks.lineage
    assert all(p.grad is None for p in made.parts.params)


def test_optimizer_hooks_run_once_on_a_commit_and_never_on_a_discard():
    made = rig()
    for n in range(8):
        made.seat.lose_at = PLACES[n // 2] if n % 2 else None
        made.attempt()
    assert len(made.hooks) == len(made.named("commit")) == 4
    assert len(made.named("discard")) == 4


def test_learning_rate_of_every_commit_is_that_of_its_step_whatever_was_discarded():
    made = rig()
    for n in range(9):
        made.seat.lose_at = "sums" if n % 3 == 1 else None
        made.attempt()
    commits = made.named("commit")
    assert [commit["step"] for commit in commits] == [1, 2, 3, 4, 5, 6]
    assert [commit["lr"] for commit in commits] == [SCHEDULE.at(s) for s in range(6)]
    assert made.parts.optimizer.param_groups[0]["lr"] == SCHEDULE.at(5)


def test_skipped_moves_only_the_clocks():
    made = rig("g0:backward@1.2:nan")
    made.attempt()
    before = everything(made)
    made.attempt()
    after = everything(made)
    commit = made.named("commit")[-1]
    assert commit["outcome"] == "skipped"
    assert commit["grad_norm"] is None
    for kept in ("tensors", "rng", "lr", "hooks", "gradients"):
        assert after[kept] == before[kept], kept
    was, now = before["clocks"], after["clocks"]
    assert (now.step, now.cursor, now.skips) == (was.step + 1, was.cursor + 8, 1)
    made.attempt()
    assert (made.state.clocks.skips, len(made.hooks)) == (0, 2)


def test_step_without_a_valid_token_is_skipped():
    made = rig()
    made.text.blank = dict.fromkeys(range(4), 16)
    made.attempt()
    (commit,) = made.named("commit")
    assert (commit["outcome"], commit["tokens"], commit["loss"]) == ("skipped", 0, None)
    assert made.hooks == []


def test_steps_that_are_skipped_in_a_row_stop_the_run():
    made = rig(nonfinite_limit=3)
    made.text.blank = dict.fromkeys(range(12), 16)
    made.attempt(2)
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.NONFINITE
    assert made.state.clocks.step == 3  # the third is on record


def test_flag_of_another_group_skips_here_too():
    made = rig()

    def flagged(summary: torch.Tensor) -> None:
        summary[1] += 1

    made.seat.alter = flagged
    made.attempt()
    assert made.named("commit")[0]["outcome"] == "skipped"


def test_microbatches_that_were_not_summed_discard_the_attempt():
    made = rig()
    before = everything(made)

    def lost(summary: torch.Tensor) -> None:
        summary[4] -= 1

    made.seat.alter = lost
    made.attempt()
    assert made.named("discard")[0]["reason"] == "divergence"
    assert everything(made) == before


def test_loss_and_gradient_are_weighted_by_tokens_not_by_microbatches():
    """Microbatches with 3, 13, 16 and 16 labels: both are means over the 48 tokens."""
    made, alone = rig(max_norm=0.0), dropping()
    made.text.blank = {0: 13, 1: 3}
    for model in (made.parts.model, alone):
        model.eval()  # no dropout: a plain loop can say what it must be
    total, tokens = torch.zeros(()), 0
    for m in range(4):
        batch = made.text.get(m)
        logits = alone(batch.tokens).flatten(0, 1)
        total = total + torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), reduction="sum")
        tokens += int((batch.labels != -100).sum())
    (total / tokens).backward()
    made.attempt()
    (commit,) = made.named("commit")
    assert tokens == commit["tokens"] == 3 + 13 + 16 + 16
    assert commit["loss"] == pytest.approx(total.item() / tokens, rel=1e-5)
    norm = torch.nn.utils.get_total_norm([p.grad for p in alone.parameters()])
    assert commit["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_buffers_of_a_discarded_attempt_are_never_used_again():
    """A peer that wakes up later still writes into them."""
    made = rig()
    made.seat.lose_at = "sums"
    made.attempt()
    lost = made.seat.channel.buffers
    made.attempt()
    used = {buffer.data_ptr() for buffer in made.seat.channel.buffers}
    assert used.isdisjoint(buffer.data_ptr() for buffer in lost)


def test_commit_record_is_json_and_says_what_the_contract_names():
    made = rig(digest_interval=1)
    made.attempt()
    (commit,) = made.named("commit")
    assert json.loads(json.dumps(commit)) == commit
    assert commit["lineage"] == str(made.state.clocks.lineage) == f"1:{EPOCH}.1"
    assert commit["shares"] == {"g0": [0, 1, 2, 3]}
    assert (commit["samples"], commit["tokens"], commit["outcome"]) == (8, 64, "updated")
    assert (commit["participants"], commit["healing"]) == (["g0"], [])
    assert commit["grad_norm"] > 0
    assert len(commit["digest"]) == 64
    assert {"attempt", "quorum_id", "step", "lr", "seconds", "loss", "phases"} <= set(commit)


def test_commit_is_on_record_before_its_state_is_saved():
    made = rig()
    at_save: list[int] = []
    save = made.disk.save
    made.disk.save = lambda *args, **more: (at_save.append(len(made.named("commit"))), save(*args, **more))
    made.attempt(2)
    assert at_save == [1, 2]


def test_digest_is_taken_when_it_is_due():
    made = rig(digest_interval=3, steps=4)
    made.attempt(4)
    assert [commit["digest"] is not None for commit in made.named("commit")] == [False, False, True, True]


def test_serving_window_is_closed_before_the_vote():
    made = rig()
    made.seat.grants = [grant("g0", "g1", healing=("g1",))]
    at_vote: list[bool] = []
    vote = made.seat.vote
    made.seat.vote = lambda **more: (at_vote.append(made.server.is_open), vote(**more))[1]
    made.attempt()
    assert len(made.server.windows) == 1
    assert at_vote == [False]
    assert made.named("commit")[0]["shares"] == {"g0": [0, 1, 2, 3], "g1": []}


def test_healing_participant_computes_nothing_and_ends_with_the_same_state():
    """Its own weights, whatever they were, reach no sum: it adds zeros until it holds the state."""
    healthy, joiner = rig(digest_interval=1), rig(group="g1", good=False, digest_interval=1)
    healthy.attempt()
    joined = grant("g0", "g1", healing=("g1",), attempt=2, running=2, current=healthy.state.clocks.lineage)
    taken = {name: tensor.clone() for name, tensor in healthy.state.tensors.items()}
    clocks = healthy.state.clocks
    with torch.no_grad():
        for p in joiner.parts.params:
            p.mul_(1000)
    joiner.state.fetch = lambda *_, tensors, on_first_byte, **more: _received(taken, clocks, tensors, on_first_byte)
    for made in (healthy, joiner):
        made.seat.grants = [joined]
    healthy.attempt()
    joiner.seat.add_from = healthy.seat.channel
    joiner.attempt()
    commits = [made.named("commit")[-1] for made in (healthy, joiner)]
    assert joiner.text.asked == []
    for field in ("digest", "step", "lineage", "shares", "loss", "grad_norm", "lr", "tokens"):
        assert commits[0][field] == commits[1][field], field


def _received(taken, clocks, tensors, on_first_byte) -> SimpleNamespace:
    on_first_byte()
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(taken[name])
    return SimpleNamespace(clocks=clocks, bytes=1, seconds=0.0, sources=("g0:0",), differing={})


@pytest.mark.parametrize("fellow", [False, True])
def test_disk_is_read_by_all_ranks_or_by_none(fellow):
    """Reading it is collective: a rank that cannot connect must not leave the others in there."""
    made = rig(good=False)
    made.seat.lose_at, made.seat.fellow_lost = (None, True) if fellow else ("connect", False)
    lineage = Lineage(3, quorum_id(1))
    made.seat.grants = [grant("g0", current=lineage, restore=lineage)]
    made.attempt()  # nothing is found on this disk: reading it would end the process
    assert made.named("discard")[0]["reason"] == "peer_lost"
    assert made.state.void


def test_loss_that_only_a_fellow_was_told_of_keeps_the_state_void():
    made = rig(good=False)
    made.seat.fellow_lost = True
    made.attempt()
    assert made.state.void
    assert made.text.asked == []
    assert made.seat.votes == [False]


def test_plan_looks_ahead_to_the_next_step():
    made = rig()
    made.attempt()
    assert made.text.plans == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_clocks_have_one_rule():
    made = rig()
    clocks = made.state.clocks
    work = made.transaction._plan(grant())
    summary = Summary(flagged=False, loss_sum=1.0, tokens=64)
    updated = advance(clocks, work=work, summary=summary, outcome=Outcome.UPDATED, quorum_id=5)
    assert (updated.step, updated.cursor, updated.tokens, updated.quorum_id, updated.skips) == (1, 8, 64, 5, 0)
    again = advance(updated, work=work, summary=summary, outcome=Outcome.SKIPPED, quorum_id=6)
    assert (again.step, again.cursor, again.tokens, again.quorum_id, again.skips) == (2, 16, 128, 6, 1)
