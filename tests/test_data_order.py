"""The sample order: a new permutation each epoch, computed from the position alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batches import Layout
from trainer.data.order import Order, Sample, total_samples


def epoch_of(order, epoch):
    return [order.index(epoch=epoch, offset=offset) for offset in range(order.samples)]


@settings(max_examples=60, deadline=None)
@given(samples=st.integers(1, 400), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_bijection(samples, seed, epoch):
    assert sorted(epoch_of(Order(samples=samples, seed=seed), epoch)) == list(range(samples))


def test_epochs_and_seeds_have_different_orders():
    order = Order(samples=100, seed=0)
    orders = {tuple(epoch_of(order, epoch)) for epoch in range(10)}
    orders |= {tuple(epoch_of(Order(samples=100, seed=seed), 0)) for seed in range(1, 10)}
    assert len(orders) == 19
    assert tuple(range(100)) not in orders


def test_order_never_changes():
    """Checkpoints store a position: another order after an upgrade would repeat and lose samples."""
    assert epoch_of(Order(samples=10, seed=7), 3) == [0, 1, 5, 2, 7, 9, 3, 6, 8, 4]
    assert Order(samples=10**12, seed=1).index(epoch=0, offset=10**11) == 779417401833


def test_order_mixes():
    """Neighbours do not stay neighbours, and no place of the stream prefers a part of the data."""
    first = [Order(samples=1000, seed=seed).index(epoch=0, offset=0) for seed in range(400)]
    assert 430 < sum(first) / 400 < 570
    order = epoch_of(Order(samples=1000, seed=0), 0)
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(order)) < 10


def test_unshuffled_is_the_order_of_the_data():
    order = Order(samples=3, seed=0, shuffle=False)
    assert [order.sample(position) for position in range(5)] == [
        Sample(0, 0),
        Sample(0, 1),
        Sample(0, 2),
        Sample(1, 0),
        Sample(1, 1),
    ]


def test_offset_outside_of_an_epoch_is_refused():
    with pytest.raises(IndexError):
        Order(samples=3, seed=0).index(epoch=0, offset=3)
    with pytest.raises(ValueError):
        Order(samples=0, seed=0)


def test_epoch_boundaries():
    """10 samples, 3 epochs, a stop anywhere: what follows is what an undisturbed run reads, each sample three times."""
    undisturbed = [Order(samples=10, seed=1).sample(position) for position in range(30)]
    for epoch in range(3):
        part = undisturbed[10 * epoch : 10 * epoch + 10]
        assert {sample.epoch for sample in part} == {epoch}
        assert sorted(sample.sequence for sample in part) == list(range(10))
    for stop in range(31):
        before = [Order(samples=10, seed=1).sample(position) for position in range(stop)]
        after = [Order(samples=10, seed=1).sample(position) for position in range(stop, 30)]
        assert before + after == undisturbed


def test_length_of_the_stream():
    assert total_samples(samples=10, epochs=3) == 30
    assert total_samples(samples=10, epochs=None) is None


def test_ranks_cover_a_microbatch_without_overlap():
    """Microbatch m is positions [m x B, (m + 1) x B), rank after rank."""
    layouts = [Layout(local_batch_size=3, dp_rank=rank, dp_ranks=4) for rank in range(4)]
    covered = [position for m in range(5) for layout in layouts for position in layout.positions(m)]
    assert covered == list(range(5 * 12))
