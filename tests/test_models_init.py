"""A model starts from bits that seed and parameter names decide, and no sharding changes."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.small_llama import SMALL, SPEC, built, tokens
from trainer.loss import token_loss
from trainer.models import init
from trainer.models.llama3.args import Llama3Args
from trainer.models.llama3.model import Llama3, Rotary


def test_start_has_the_intended_statistics():
    args = SPEC.flavor("debug")
    model = built(args, seq_len=128)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        std = 0.02
        if name == "output.weight":
            std = args.dim**-0.5
        elif name.endswith(("wo.weight", "w2.weight")):
            std = 0.02 / math.sqrt(8)
        n = parameter.numel()  # five standard errors of a normal sample's mean and deviation
        assert abs(parameter.mean()) < 5 * std / n**0.5, name
        assert abs(parameter.std() / std - 1) < 5 / (2 * n) ** 0.5, name
        assert parameter.abs().max() < 7 * std, name
    text = tokens(2, 128, args=args)
    loss = token_loss(model(text), text.roll(1, 1)) / text.numel()
    assert abs(loss.item() - (math.log(args.vocab_size) + 0.5)) < 0.2  # unit logits: half a nat above uniform


def test_start_depends_on_seed_and_name_only():
    first, again, other = (dict(built(seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    normal = [name for name in first if first[name].ndim > 1]
    assert not any(torch.equal(first[name], other[name]) for name in normal)
    drawn_from = [first[name].flatten()[:8] / first[name].flatten()[0] for name in normal]
    assert not any(torch.allclose(a, b) for a, b in itertools.combinations(drawn_from, 2))  # each its own stream
    part = built(seed=3)
    del part.layers["0"]
    SPEC.init_weights(part, seed=1)
    assert torch.equal(part.layers["1"].attention.wq.weight, first["layers.1.attention.wq.weight"])
    wrapped = torch.nn.ModuleDict({"_orig_mod": torch.nn.Linear(4, 4, bias=False)})
    init.init_parameters(wrapped, seed=1, rule=lambda name: init.Constant(float(name == "weight")))
    assert torch.equal(wrapped["_orig_mod"].weight, torch.ones(4, 4))


def test_rotary_table_is_written_again_after_to_empty():
    fresh = Llama3(SMALL, seq_len=32)
    with torch.device("meta"):
        model = SPEC.build(SMALL, seq_len=32)
    with pytest.raises(ValueError, match="to_empty first"):
        SPEC.init_weights(model, seed=0)
    model.to_empty(device="cpu")
    tables = [module.table for module in model.modules() if isinstance(module, Rotary)]
    assert len(tables) == 1
    tables[0].fill_(math.nan)
    SPEC.init_weights(model, seed=0)
    assert torch.equal(tables[0], next(fresh.buffers()))
    assert "table" not in "".join(model.state_dict())


@pytest.fixture
def fake_world():
    """A world of eight ranks in one process; none of them speaks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("block", [init.BLOCK_NUMBERS, 40], ids=["one block", "many blocks"])
@pytest.mark.parametrize(
    ("mesh_shape", "placements"),
    [
        ((2,), (Shard(0),)),
        ((4,), (Shard(0),)),  # uneven: 10 rows as 3, 3, 3, 1
        ((7,), (Shard(0),)),  # 2, 2, 2, 2, 2, none, none
        ((2, 2), (Replicate(), Shard(1))),
        ((2, 2), (Shard(0), Shard(1))),
        ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),  # FSDP over tensor parallelism
    ],
    ids=str,
)
def test_every_rank_of_every_mesh_draws_its_part_of_the_whole(fake_world, monkeypatch, mesh_shape, placements, block):
    monkeypatch.setattr(init, "BLOCK_NUMBERS", block)
    rows = 12 if isinstance(placements[0], _StridedShard) else 10
    whole = drawn(torch.empty(rows, 12))
    mesh = DeviceMesh("cpu", torch.arange(math.prod(mesh_shape)).view(mesh_shape))
    times_drawn = torch.zeros_like(whole)
    for coordinate in itertools.product(*map(range, mesh_shape)):
        held = torch.arange(whole.numel()).view_as(whole)
        for axis, placement in enumerate(placements):
            if not placement.is_replicate():
                held = placement._split_tensor(held, mesh_shape[axis], with_padding=False)[0][coordinate[axis]]
        monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda self, at=coordinate: at)
        local = torch.full(held.shape, math.nan)
        shard = DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
        drawn(shard)
        assert torch.equal(local, whole.flatten()[held])
        times_drawn.flatten()[held.flatten()] += 1
    assert times_drawn.min() == times_drawn.max() == (mesh_shape[0] if placements[0].is_replicate() else 1)


def test_each_block_of_a_parameter_has_its_own_numbers(monkeypatch):
    monkeypatch.setattr(init, "BLOCK_NUMBERS", 40)
    whole = drawn(torch.empty(9, 12))  # blocks of three rows
    assert len(whole.unique()) > 100
    assert torch.equal(drawn(torch.empty(3, 12)), whole[:3])


def drawn(tensor: torch.Tensor) -> torch.Tensor:
    """Write the start of a parameter called ``weight`` into ``tensor``."""
    holder = torch.nn.Module()
    holder.weight = torch.nn.Parameter(tensor)
    init.init_parameters(holder, seed=5, rule=lambda _: init.Normal(1.0))
    return holder.weight.detach()


def _sharded_rank(rank: int, store: str, results: str, args: Llama3Args) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    with torch.device("meta"):
        model = SPEC.build(args, seq_len=32)
    mesh = dist.init_device_mesh("cpu", (2,))
    for module in [*SPEC.blocks(model), model]:
        fully_shard(module, mesh=mesh)
    model.to_empty(device="cpu")
    with CommDebugMode() as comms:
        SPEC.init_weights(model, seed=7)
    assert comms.get_total_counts() == 0
    names = [name for name, _ in model.named_parameters()]
    loss = token_loss(model(tokens()), tokens())
    loss.backward()
    whole = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    assert names == list(whole)
    if rank == 0:
        torch.save({"loss": loss.detach(), "whole": whole, "grads": grads}, results)
    dist.barrier()
    dist.destroy_process_group()


def test_two_fsdp_ranks_start_with_the_same_bits_as_one(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    args = dataclasses.replace(SMALL, tied=True, vocab_size=51)  # an uneven shard, and the head that is the embedding
    results = tmp_path / "results.pt"
    torch.multiprocessing.spawn(_sharded_rank, args=(str(tmp_path / "store"), str(results), args), nprocs=2)
    sharded = torch.load(results, weights_only=True)
    alone = built(args)
    loss = token_loss(alone(tokens()), tokens())
    loss.backward()
    expected = dict(alone.named_parameters())
    assert list(sharded["whole"]) == list(expected)
    for name, parameter in expected.items():
        assert torch.equal(sharded["whole"][name], parameter), name
        torch.testing.assert_close(sharded["grads"][name], parameter.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(sharded["loss"], loss.detach(), atol=1e-4, rtol=1e-5)
