"""The state digest: one number for one state, however it is cut."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from checkpointing import gather
from checkpointing.digest import state_digest
from tests.support import sharded
from tests.support.ranks import run_ranks
from tests.support.states import clocks, tensors


def by_hand(state: dict[str, torch.Tensor], step: int, cursor: int) -> str:
    """contract.md, read literally."""
    entries = {"clocks.step": step.to_bytes(8, "little"), "clocks.cursor": cursor.to_bytes(8, "little")}
    for name, tensor in state.items():
        entries[name] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    hasher = hashlib.sha256()
    for name in sorted(entries):
        hasher.update(name.encode() + b"\0" + len(entries[name]).to_bytes(8, "little") + entries[name])
    return hasher.hexdigest()


def test_it_is_sha256_over_sorted_names_and_bytes(monkeypatch):
    state = tensors(1)
    expected = by_hand(state, 12, clocks(12).cursor)
    assert state_digest(state, clocks(12), group=None) == expected
    assert state_digest(dict(reversed(state.items())), clocks(12), group=None) == expected
    monkeypatch.setattr(gather, "BATCH_BYTES", 100)  # as many exchanges as tensors
    assert state_digest(state, clocks(12), group=None) == expected


def test_it_sees_every_tensor_and_the_two_clocks_but_not_the_lineage():
    state = tensors(1)
    first = state_digest(state, clocks(12), group=None)
    assert state_digest(state, clocks(12, running=9), group=None) == first
    assert state_digest(state, clocks(13), group=None) != first
    for name, tensor in state.items():
        if tensor.numel():
            other = tensor.clone()
            other.view(-1)[0] += 1
            changed = {**state, name: other}
            assert state_digest(changed, clocks(12), group=None) != first, name


def whole(world: int) -> dict[str, torch.Tensor]:
    return {
        name: tensor.full_tensor().detach() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in sharded.state(world).items()
    }


def ranks_digest(rank: int, world: int) -> dict[str, str]:
    group = sharded.dedicated()
    found = {"fsdp": state_digest(sharded.state(world), clocks(12), group=group)}
    found["whole"] = state_digest(whole(world), clocks(12), group=group)
    mesh = init_device_mesh("cpu", (world,))
    columns = {
        n: distribute_tensor(t, mesh, [Shard(t.dim() - 1) if t.dim() else Replicate()]) for n, t in whole(world).items()
    }
    found["columns"] = state_digest(columns, clocks(12), group=group)
    stages = {name: tensor for i, (name, tensor) in enumerate(whole(world).items()) if i % world == rank}
    found["stages"] = state_digest(stages, clocks(12), group=group)
    with pytest.raises(ValueError, match="ranks hold"):
        state_digest({"model.x": torch.zeros(rank + 1)}, clocks(12), group=group)
    dist.barrier()
    return found


def test_it_does_not_depend_on_sharding(tmp_path):
    one, *_ = run_ranks(ranks_digest_alone, 1, tmp_path)
    two = run_ranks(ranks_digest, 2, tmp_path)
    assert {digest for found in two for digest in found.values()} == {one}


def ranks_digest_alone(rank: int, world: int) -> str:
    state = sharded.state(world)
    digest = state_digest(state, clocks(12), group=None)
    assert digest == by_hand(whole(world), 12, clocks(12).cursor)
    return digest
