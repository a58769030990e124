"""What cannot be summed exactly is flagged, adds zeros, and never wraps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from replica_groups.reduce import GradientReducer, precision
from tests.support.sums import Posted, add_up

BITS = 44


class Given(nn.Module):
    """Two parameters whose gradients are what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3))
        self.b = nn.Parameter(torch.zeros(2))


def exact(microbatches: int = 1, ranks: int = 1):
    return precision(reduction="exact", bits=BITS, microbatches=microbatches, ranks=ranks)


def reducer_of(model: nn.Module, how) -> tuple[GradientReducer, Posted]:
    made = GradientReducer(model, how=how, bucket_bytes=1 << 20, failpoint=lambda *_: None)
    channel = Posted()
    made.begin(channel)
    return made, channel


def backward(model: Given, reducer: GradientReducer, a: list[float], b: list[float], *, last: bool = True) -> None:
    reducer.expect(last=last)
    torch.autograd.backward([model.a, model.b], [torch.tensor(a), torch.tensor(b)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**19, -(2.0**19)])
def test_bad_gradient_sets_the_flag_and_adds_zeros(bad):
    model = Given()
    reducer, channel = reducer_of(model, exact())
    backward(model, reducer, [1.0, bad, 1.0], [2.0, 3.0])
    reducer.post_rest()
    assert reducer.flagged()
    (buffer,) = channel.buffers
    assert buffer.tolist() == [2 << BITS, 3 << BITS, 0, 0, 0]  # b comes first: the reverse of the parameters


def test_fixed_point_is_the_nearest_one():
    """Cutting off instead would pull every gradient towards zero."""
    model = Given()
    reducer, channel = reducer_of(model, exact())
    backward(model, reducer, [0.75 * 2.0**-BITS, -0.75 * 2.0**-BITS, 0.25 * 2.0**-BITS], [1.0, 2.0])
    assert channel.buffers[0].tolist() == [1 << BITS, 2 << BITS, 1, -1, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_fp32_is_checked_for_what_is_not_finite(bad):
    model = Given()
    reducer, channel = reducer_of(model, precision(reduction="fp32", bits=BITS, microbatches=1, ranks=1))
    backward(model, reducer, [1.0, bad, 1.0], [1e30, 3.0])
    reducer.post_rest()
    assert reducer.flagged()
    assert channel.buffers[0].tolist() == [pytest.approx(1e30), 3.0, 0.0, 0.0, 0.0]


def test_flag_of_one_microbatch_stands_for_the_whole_share_and_not_for_the_next():
    model = Given()
    reducer, channel = reducer_of(model, exact(2))
    backward(model, reducer, [math.nan] * 3, [1.0, 1.0], last=False)
    backward(model, reducer, [1.0] * 3, [1.0, 1.0])
    reducer.post_rest()
    assert reducer.flagged()
    assert channel.buffers[0].tolist() == [2 << BITS] * 2 + [1 << BITS] * 3
    reducer.drop(abandoned=False)
    reducer.begin(channel)
    backward(model, reducer, [1.0] * 3, [1.0, 1.0])
    assert not reducer.flagged()


@given(microbatches=st.integers(1, 4096), ranks=st.integers(1, 512), bits=st.integers(20, 52))
def test_no_sum_of_gradients_within_the_limit_can_wrap(microbatches, ranks, bits):
    how = precision(reduction="exact", bits=bits, microbatches=microbatches, ranks=ranks)
    largest = float(torch.tensor(how.limit))  # as the device compares it, in fp32
    assert round(largest * 2**bits) * microbatches * ranks < 2**63


@pytest.mark.parametrize(("microbatches", "participants"), [(1, 1), (6, 1), (6, 3), (7, 2)])
def test_sums_at_the_limit_are_right_and_beyond_it_flagged(microbatches, participants):
    how = exact(microbatches)
    inside = math.nextafter(float(torch.tensor(how.limit).item()), 0.0)
    inside = float(torch.nextafter(torch.tensor(inside), torch.tensor(0.0)))
    channels, model, reducer = [], Given(), None
    for r in range(participants):
        model = Given()
        reducer, channel = reducer_of(model, how)
        share = range(r, microbatches, participants)
        for m in share:
            backward(model, reducer, [inside, -inside, 0.0], [0.0, 0.0], last=m == share[-1])
        reducer.post_rest()
        assert not reducer.flagged()
        channels.append(channel)
    add_up(channels)
    reducer.deliver(scale=1.0)
    expected = inside * microbatches
    assert model.a.grad.tolist() == pytest.approx([expected, -expected, 0.0], rel=1e-6)
    backward_beyond(how, 1.001 * how.limit)


def backward_beyond(how, value: float) -> None:
    model = Given()
    reducer, _ = reducer_of(model, how)
    backward(model, reducer, [value, 0.0, 0.0], [0.0, 0.0])
    assert reducer.flagged()


def test_without_the_limit_int64_would_wrap_in_silence():
    """Why there is one: 3e5 + 3e5 at 2^44."""
    fixed = torch.round(torch.tensor([3e5], dtype=torch.float64) * 2.0**BITS).to(torch.int64)
    assert (fixed + fixed).double().item() * 2.0**-BITS == pytest.approx(-448_576)
    backward_beyond(exact(2), 3e5)


def test_injected_nan_is_flagged_once():
    model = Given()
    reducer, _ = reducer_of(model, exact())
    reducer.poison_next()
    backward(model, reducer, [1.0] * 3, [1.0] * 2)
    assert reducer.flagged()
    reducer.begin(Posted())
    backward(model, reducer, [1.0] * 3, [1.0] * 2)
    assert not reducer.flagged()
