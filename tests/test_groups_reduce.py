"""Gradients of a step: the same sum whoever computed what, every parameter once, posted in one fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from replica_groups.reduce import precision
from tests.support.sums import Participant, Posted, add_up, kinds, loss_of, plain_gradients
from tests.support.training import one_thread

M = 6


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with one_thread():
        yield


EXACT = precision(reduction="exact", bits=44, microbatches=M, ranks=1)
FP32 = precision(reduction="fp32", bits=44, microbatches=M, ranks=1)


def reduced(shares: Sequence[Sequence[int]], *, how=EXACT, scale: float = 1.0) -> list[dict[str, torch.Tensor]]:
    """The gradients that every participant holds after a step with these shares."""
    participants = [Participant(kinds(), how=how) for _ in shares]
    for participant, share in zip(participants, shares, strict=True):
        participant.compute(share)
    add_up([p.channel for p in participants])
    for participant in participants:
        participant.reducer.deliver(scale=scale)
    return [p.gradients() for p in participants]


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)) for name in a)


ALONE = [[0, 1, 2, 3, 4, 5]]
SPLITS = {
    "two": [[0, 2, 4], [1, 3, 5]],
    "three": [[0, 3], [1, 4], [2, 5]],
    "two of which one heals": [[], [0, 1, 2, 3, 4, 5]],
    "three of which one heals": [[0, 2, 4], [], [1, 3, 5]],
    "hot spares": [[0], [1], [2], [3], [4], [5], [], []],
    "another order": [[5, 3, 1], [4, 0, 2]],
}


@pytest.mark.parametrize("name", SPLITS)
def test_exact_sums_are_the_same_bits_however_the_step_is_split(name):
    expected = reduced(ALONE)[0]
    for gradients in reduced(SPLITS[name]):
        assert same_bits(gradients, expected)


def test_plain_sums_of_the_same_gradients_depend_on_their_order():
    """Otherwise the test above would prove nothing."""
    orders = [reduced(ALONE, how=FP32)[0], reduced(SPLITS["another order"], how=FP32)[0]]
    assert not same_bits(*orders)


@pytest.mark.parametrize("how", [EXACT, FP32], ids=["exact", "fp32"])
def test_every_parameter_is_summed_exactly_once(how):
    """Tied, unused and ordinary parameters equal what autograd accumulates alone; a frozen one gets nothing."""
    expected = plain_gradients(kinds(), range(M))
    for gradients in reduced(SPLITS["three of which one heals"], how=how):
        assert gradients.keys() == expected.keys()
        assert not any(name.startswith("frozen") for name in gradients)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_buffers_hold_each_trained_element_once():
    participant = Participant(kinds(), how=EXACT)
    participant.compute([0])
    trained = {id(p): p.numel() for p in participant.model.parameters() if p.requires_grad}
    assert sum(participant.channel.sizes) == sum(trained.values())
    assert participant.reducer.bucket_sizes == [8 * size for size in participant.channel.sizes]


def test_true_token_count_corrects_the_planned_one():
    expected = reduced(ALONE)[0]
    for gradients in reduced(SPLITS["two"], scale=1.5):
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, 1.5 * expected[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("share", [[], [0], [0, 1, 2]], ids=["empty", "one", "three"])
def test_buckets_are_posted_in_one_order_whatever_the_share(share):
    participant = Participant(kinds(), how=EXACT)
    order = [bucket.sizes for bucket in participant.reducer._buckets]
    participant.compute(share)
    assert len(order) > 2
    assert participant.channel.sizes == [sum(sizes) for sizes in order]
    sums = [buffer.abs().sum().item() for buffer in participant.channel.buffers]
    assert any(sums) == bool(share)  # an empty share adds zeros


class Backwards(nn.Module):
    """Parameters declared against the order of their use: backward completes the last bucket first."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4, bias=False)
        self.first = nn.Linear(4, 11, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = nn.functional.one_hot(tokens, 11).float() @ self.first.weight
        return self.second(h) @ self.first.weight.detach().T


def test_bucket_that_is_complete_waits_for_the_one_before_it():
    participant = Participant(Backwards(), how=EXACT, bucket_bytes=8)
    reducer = participant.reducer
    first, second = (id(b.params[0]) for b in reducer._buckets)
    assert [first, second] == [id(participant.model.first.weight), id(participant.model.second.weight)]
    arrived: list[tuple[int, int]] = []
    for p in participant.model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: arrived.append((id(p), len(participant.channel.buffers))))
    reducer.begin(participant.channel)
    reducer.expect(last=True)
    loss_of(participant.model, 0).backward()
    assert arrived == [(second, 0), (first, 2)]  # nothing is posted until bucket 0 is there, then both
    assert participant.channel.sizes == [44, 16]


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 11, bias=False))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(tokens)


def test_summing_overlaps_the_last_backward_and_only_that():
    participant = Participant(Chain(), how=EXACT, bucket_bytes=8)
    reducer, channel = participant.reducer, participant.channel
    posted: list[int] = []
    for p in participant.model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: posted.append(len(channel.buffers)))
    reducer.begin(channel)
    reducer.expect(last=False)
    loss_of(participant.model, 0).backward()
    assert posted == [0, 0, 0]
    reducer.expect(last=True)
    loss_of(participant.model, 1).backward()
    assert posted[3:] == [1, 2, 3]
    reducer.post_rest()
    assert len(channel.buffers) == 3  # backward had posted all


def test_empty_share_is_a_share_although_others_compute_nothing_either():
    for gradients in reduced([[], []]):
        assert all(not g.any() for g in gradients.values())


@pytest.mark.parametrize("abandoned", [False, True])
@pytest.mark.parametrize("interrupted", [False, True], ids=["after the share", "inside the share"])
def test_drop_leaves_no_gradient_behind(abandoned, interrupted):
    participant = Participant(kinds(), how=EXACT)
    if interrupted:
        participant.reducer.begin(participant.channel)
        participant.reducer.expect(last=False)
        loss_of(participant.model, 0).backward()
    else:
        participant.compute([0, 1])
        participant.reducer.deliver(scale=1.0)
    participant.reducer.drop(abandoned=abandoned)
    assert all(p.grad is None for p in participant.model.parameters())
    participant.compute([2])
    participant.reducer.deliver(scale=1.0)
    alone = Participant(kinds(), how=EXACT)
    alone.compute([2])
    alone.reducer.deliver(scale=1.0)
    assert same_bits(participant.gradients(), alone.gradients())


def test_backward_outside_an_attempt_leaves_nothing():
    participant = Participant(kinds(), how=EXACT)
    loss_of(participant.model, 0).backward()
    assert all(p.grad is None for p in participant.model.parameters())
    participant.compute([1])
    alone = Participant(kinds(), how=EXACT)
    alone.compute([1])
    assert all(torch.equal(a, b) for a, b in zip(participant.channel.buffers, alone.channel.buffers, strict=True))


def test_late_write_of_a_peer_into_abandoned_buffers_changes_nothing():
    participant = Participant(kinds(), how=EXACT)
    participant.compute([0, 1])
    lost = participant.channel.buffers
    participant.reducer.drop(abandoned=True)
    participant.compute([0, 1])
    for buffer in lost:
        buffer.fill_(1 << 50)  # the paused peer is awake
    assert {b.data_ptr() for b in lost}.isdisjoint(b.data_ptr() for b in participant.channel.buffers)
    participant.reducer.deliver(scale=1.0)
    assert max(float(g.abs().max()) for g in participant.gradients().values()) < 10


def test_buffers_are_kept_after_a_commit():
    participant = Participant(kinds(), how=EXACT)
    kept = []
    for _ in range(2):
        participant.compute([0])
        participant.reducer.deliver(scale=1.0)
        kept.append([b.data_ptr() for b in participant.channel.buffers])
        participant.reducer.drop(abandoned=False)
    assert kept[0] == kept[1]


def test_gradient_that_is_taken_does_not_stay_in_the_parameter():
    participant = Participant(kinds(), how=EXACT)
    participant.reducer.begin(Posted())
    participant.reducer.expect(last=True)
    loss_of(participant.model, 0).backward()
    assert all(p.grad is None for p in participant.model.parameters())
