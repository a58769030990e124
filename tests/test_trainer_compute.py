"""Computing a share: randomness is a function of the work, nothing is left behind, and the loss cannot lie."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stand_ins import SHAPE
from tests.support.training import WORDS, bits, rig, world_of_one
from trainer.compute import LOSS_BITS, loss_limit, random_seed


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def test_seed_of_a_microbatch_depends_on_all_that_names_it_and_on_nothing_else():
    names = list(itertools.product((0, 1), (0, 1, 11), (0, 1, 11), (0, 1)))
    seeds = {name: random_seed(*name) for name in names}
    assert len(set(seeds.values())) == len(names)  # 1/11 is not 11/1
    assert seeds == {name: random_seed(*name) for name in reversed(names)}
    assert all(0 <= seed < 2**63 for seed in seeds.values())


def summed(made, *, history: int = 0) -> list[torch.Tensor]:
    """The buffers of one share, after drawing so many numbers from the generator."""
    torch.rand(history)
    work = made.transaction._plan(made.seat.quorum(made.transaction._standing()).grant)
    channel = made.seat.connect(None)
    made.parts.compute.share(work, step=made.state.clocks.step, channel=channel)
    found = [buffer.clone() for buffer in channel.buffers]
    made.parts.reducer.drop(abandoned=True)
    return found


def test_dropout_does_not_depend_on_history():
    first, again, elsewhere = rig(), rig(), rig(rank=1)
    expected = summed(first)
    for found in (summed(first, history=5), summed(again, history=17)):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    other = summed(elsewhere)  # another rank draws others
    assert not all(torch.equal(a, b) for a, b in zip(other, expected, strict=True))


def test_share_leaves_the_generator_as_it_was():
    made = rig()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    summed(made)
    assert torch.equal(torch.get_rng_state(), before)


def test_rehearsal_moves_nothing():
    made = rig()
    before, random = bits(made.state.tensors), torch.get_rng_state()
    made.parts.compute.rehearse(rows=SHAPE.samples, seq_len=SHAPE.seq_len, vocabulary=WORDS)
    assert bits(made.state.tensors) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in made.parts.params)
    assert made.hooks == []
    assert made.text.asked == []
    fresh = rig()
    assert all(torch.equal(a, b) for a, b in zip(summed(made), summed(fresh), strict=True))


def test_empty_share_asks_for_no_data_and_posts_zeros():
    made = rig(group="g1")
    made.state.group = "g1"
    from tests.support.grants import grant

    work = made.transaction._plan(grant("g0", "g1", healing=("g1",)))
    channel = made.seat.connect(None)
    made.parts.compute.share(work, step=0, channel=channel)
    assert made.text.asked == []
    assert channel.sizes
    assert not any(buffer.any() for buffer in channel.buffers)


@given(microbatches=st.integers(1, 4096), ranks=st.integers(1, 512))
def test_no_sum_of_losses_within_the_limit_can_wrap(microbatches, ranks):
    largest = float(torch.tensor(loss_limit(microbatches=microbatches, ranks=ranks)))
    assert round(largest * 2**LOSS_BITS) * microbatches * ranks < 2**63


@pytest.mark.parametrize("scale", [1e9, float("nan"), float("inf")])
def test_loss_that_cannot_be_summed_is_flagged(scale, monkeypatch):
    """A loss of 1e9 is finite, and its gradient can be small; in fixed point it would wrap in silence."""
    import trainer.compute

    def far(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.sum() * 0.0 + scale

    made = rig()
    monkeypatch.setattr(trainer.compute, "token_loss", far)
    made.attempt()
    (commit,) = made.named("commit")
    assert commit["outcome"] == "skipped"
    assert made.hooks == []


def test_failpoints_of_a_share_are_reached_once_for_every_microbatch():
    made = rig()
    reached: list[tuple[str, int | None]] = []
    hit = made.parts.failpoints
    made.parts.compute._failpoint = lambda name, **_: reached.append((name, hit.microbatch))
    made.attempt(2)
    share = [(name, m) for m in range(4) for name in ("data", "forward")]
    assert reached == [*share, ("summary", None), ("summary_sent", None)] * 2  # numbered within the step's plan
