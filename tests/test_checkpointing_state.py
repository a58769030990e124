"""The closed list: what is in it, under which names, and that it can exist before the first step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from checkpointing.state import Clocks, closed_list, describe, ensure_optimizer_state
from tests.support.states import clocks


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.LayerNorm(4)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


def test_list_holds_parameters_buffers_and_optimizer_state_once_in_fixed_order():
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    ensure_optimizer_state(optimizer)
    listed = closed_list([model], [optimizer])
    parameters = ["embedding.weight", "norm.weight", "norm.bias"]
    assert {n for n in listed if n.startswith("model.")} == {f"model.{n}" for n in [*parameters, "kept"]}
    assert [n for n in listed if n.startswith("optim.")] == [
        f"optim.{n}.{key}" for n in parameters for key in ("exp_avg", "exp_avg_sq", "step")
    ]
    assert listed["model.embedding.weight"] is model.embedding.weight
    assert list(closed_list([model], [optimizer])) == list(listed)


def test_names_are_those_of_the_plain_model():
    model = nn.Sequential(nn.Linear(2, 2))
    plain = list(closed_list([model]))
    model[0] = torch.compile(model[0])
    assert list(closed_list([model])) == plain == ["model.0.weight", "model.0.bias"]


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"fused": True}, {"foreach": True}], ids=str)
def test_state_before_the_first_step_is_what_torch_makes_lazily(options):
    early = Tied()
    late = copy.deepcopy(early)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.0, weight_decay=0.0, **options) for m in (early, late)]
    ensure_optimizer_state(optimizers[0])
    for p in late.parameters():
        p.grad = torch.zeros_like(p)
    optimizers[1].step()  # creates the state, then counts the step
    for mine, torchs in zip(early.parameters(), late.parameters(), strict=True):
        made, lazy = optimizers[0].state[mine], optimizers[1].state[torchs]
        assert list(made) == list(lazy)
        lazy["step"] -= 1
        for key in lazy:
            assert made[key].dtype == lazy[key].dtype
            assert made[key].device == lazy[key].device
            assert made[key].stride() == lazy[key].stride()
            assert torch.equal(made[key], lazy[key])


def test_existing_state_is_left_alone_and_frozen_parameters_have_none():
    model = Tied()
    model.norm.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    ensure_optimizer_state(optimizer)
    optimizer.state[model.norm.weight]["exp_avg"].fill_(3)
    ensure_optimizer_state(optimizer)
    listed = closed_list([model], [optimizer])
    assert listed["optim.norm.weight.exp_avg"].eq(3).all()
    assert "model.norm.bias" in listed
    assert not any(n.startswith("optim.norm.bias") for n in listed)


def test_what_cannot_be_listed_is_refused():
    model = Tied()
    with pytest.raises(ValueError, match="no optimizer state yet"):
        closed_list([model], [torch.optim.AdamW(model.parameters())])
    stranger = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    ensure_optimizer_state(stranger)
    with pytest.raises(ValueError, match="no model lists"):
        closed_list([model], [stranger])
    with pytest.raises(ValueError, match="two tensors are named"):
        closed_list([nn.Linear(2, 2), nn.Linear(2, 2)])
    with pytest.raises(ValueError, match="SGD"):
        ensure_optimizer_state(torch.optim.SGD(model.parameters()))


def test_clocks_travel_as_json_and_strangers_are_refused():
    now = clocks(12)
    assert Clocks.from_json(now.to_json()) == now
    assert now.lineage == (12, now.quorum_id)
    with pytest.raises(ValueError, match="cursor"):
        Clocks.from_json({k: v for k, v in now.to_json().items() if k != "cursor"})
    with pytest.raises(ValueError, match="extra"):
        Clocks.from_json({**now.to_json(), "extra": 1})
    with pytest.raises(ValueError, match="step must be int"):
        Clocks.from_json({**now.to_json(), "step": "12"})


def test_a_plain_tensor_is_its_own_only_shard():
    shard = describe(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert (shard.dtype, shard.shape, shard.offset, shard.size) == ("bfloat16", (3, 4), (0, 0), (3, 4))
    assert not shard.empty
    assert describe(torch.zeros(0, 4)).empty
