"""The update: norm and clipping as torch has them, and a learning rate that is the step's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.support.training import world_of_one
from trainer.optimizer import build_optimizer, clip, gradient_norm, update


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


@pytest.fixture
def params() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = [nn.Parameter(torch.randn(n, generator=generator)) for n in (3, 5, 1)]
    for p in made[:2]:
        p.grad = torch.randn(p.shape, generator=generator)
    return made  # the last one has no gradient


def norm_of(params) -> float:
    return gradient_norm(params)


def test_norm_is_that_of_the_whole_gradient(params):
    assert norm_of(params) == pytest.approx(float(nn.utils.get_total_norm([p.grad for p in params[:2]])), rel=1e-6)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_equals_torchs(params, max_norm):
    theirs = [nn.Parameter(p.detach().clone()) for p in params]
    for p, other in zip(params, theirs, strict=True):
        other.grad = None if p.grad is None else p.grad.clone()
    nn.utils.clip_grad_norm_(theirs, max_norm)
    clip(params, norm=norm_of(params), max_norm=max_norm)
    for p, other in zip(params[:2], theirs, strict=False):
        torch.testing.assert_close(p.grad, other.grad, rtol=1e-6, atol=0)
    assert params[2].grad is None


def test_no_clipping_at_zero(params):
    before = [p.grad.clone() for p in params[:2]]
    clip(params, norm=norm_of(params), max_norm=0.0)
    assert all(torch.equal(p.grad, b) for p, b in zip(params, before, strict=False))


def test_norm_of_many_elements_is_as_exact_as_that_of_few():
    generator = torch.Generator().manual_seed(2)
    p = nn.Parameter(torch.zeros(3, 5000))
    p.grad = torch.randn(p.shape, generator=generator)
    assert norm_of([p]) == pytest.approx(float(p.grad.double().square().sum().sqrt()), rel=1e-7)


def test_norm_of_great_and_of_small_gradients_neither_overflows_nor_vanishes():
    for value in (1e30, 1e-30):
        p = nn.Parameter(torch.zeros(4))
        p.grad = torch.full((4,), value)
        assert norm_of([p]) == pytest.approx(2 * value, rel=1e-6)


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_update_uses_the_rate_it_is_given_and_leaves_no_gradient(params, name, implementation):
    before = params[0].detach().clone()
    optimizer = build_optimizer(
        params, name=name, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, implementation=implementation
    )
    update(optimizer, lr=0.01)
    # Adam's first update is the rate, in the gradient's direction.
    assert (before - params[0]).abs().detach().tolist() == pytest.approx([0.01] * 3, rel=1e-3)
    assert all(p.grad is None for p in params)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01]
    assert math.isclose(optimizer.defaults["eps"], 1e-8)


def test_frozen_parameters_are_not_optimized():
    params = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2), requires_grad=False)]
    optimizer = build_optimizer(
        params, name="AdamW", betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, implementation="fused"
    )
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(params[0])]
    assert (group["fused"], group["foreach"]) == (True, False)
