"""The ranks of a group fill their shards from a Hugging Face folder, and export their state together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from checkpointing.errors import CheckpointError
from checkpointing.hf_format import SafetensorsFolder
from checkpointing.opened import OpenCheckpoint
from checkpointing.state import MODEL, closed_list, local
from checkpointing.weights import load_weights
from configs.run_folder import RunFolder
from tests.support.ranks import run_ranks
from tests.support.sharded import dedicated
from tests.support.states import Recorder, clocks
from tests.support.weights import drawn, saved, shaped
from trainer.convert import to_hf
from trainer.exports import LastExport
from trainer.hf_folder import Described
from trainer.models.llama3 import hf
from trainer.models.registry import get

ARGS = dataclasses.replace(shaped(kv_heads=1), vocab_size=301)
WORLD = 2  # the one head of the keys is cut in two, and the vocabulary does not divide


@pytest.fixture(autouse=True)
def _flavor(monkeypatch):
    monkeypatch.setattr(get("llama3"), "flavors", {"tiny": ARGS})


def sharded(seed: int) -> dict[str, torch.Tensor]:
    model = drawn(ARGS, seed=seed)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return dict(closed_list([model]))


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


class Counting(SafetensorsFolder):
    """Says how many numbers were read."""

    numbers = 0

    def read(self, name, region):
        found = super().read(name, region)
        self.numbers += found.numel()
        return found


def filling(rank: int, world: int, folder: str) -> int:
    torch.use_deterministic_algorithms(True)
    tensors = sharded(seed=5)
    source = Counting(Path(folder))
    load_weights(source, hf.weight_map(ARGS), tensors)
    expected = drawn(ARGS, seed=9).state_dict()
    found = whole(tensors)
    assert found.keys() == {MODEL + name for name in expected}
    assert all(torch.equal(found[MODEL + name], tensor) for name, tensor in expected.items())
    return source.numbers


def test_each_rank_reads_the_slices_of_its_shards(tmp_path):
    folder = tmp_path / "hf"
    to_hf(saved(tmp_path / "checkpoints", drawn(ARGS, seed=9)), folder, model="llama3", flavor="tiny")
    read = run_ranks(filling, WORLD, tmp_path, str(folder))
    total = get("llama3").num_params(ARGS)
    assert total <= sum(read) < 1.1 * total  # a head that two ranks share is read by both


def exporter(root: Path, **changes) -> LastExport:
    model = Described(spec=get("llama3"), args=ARGS, seq_len=64, tokenizer=None)
    fields = {"in_hf": True, "dtype": torch.bfloat16, "sink": Recorder(), **changes}
    return LastExport(
        run=RunFolder(root), model=model, flavor="tiny", group=dedicated(), writer="g0.1", secret=None, **fields
    )


def exporting(rank: int, world: int, root: str) -> list[dict]:
    tensors = {**sharded(seed=9), "optim.of.no.interest": torch.zeros(3)}
    sink = Recorder()
    export = exporter(Path(root) / "hf", sink=sink)
    export(tensors, clocks(4))
    export(tensors, clocks(4))  # it is there: nothing is done again
    exporter(Path(root) / "alone", in_hf=False)(tensors, clocks(4))
    blocked = exporter(Path(root) / "blocked")
    if rank == 0:
        blocked.run.root.write_text("a file where a folder must be")
    dist.barrier()
    with pytest.raises(CheckpointError, match="the last state could not be exported"):
        blocked(tensors, clocks(4))
    with torch.no_grad():
        local(tensors["model.layers.1.ffn_norm.weight"]).fill_(7e4)
    with pytest.raises(CheckpointError, match="does not fit float16"):  # in the middle of the exchange
        exporter(Path(root) / "other", dtype=torch.float16)(tensors, clocks(4))
    dist.barrier()  # nobody is left inside an exchange
    return sink.events


def test_the_ranks_export_their_state_together_and_fail_together(tmp_path):
    leftover = tmp_path / "hf" / "exports" / f".writing-g0.0-{clocks(4).lineage.folder}"
    leftover.mkdir(parents=True)
    events = run_ranks(exporting, WORLD, tmp_path, str(tmp_path))
    assert [len(found) for found in events] == [1] * WORLD
    name = clocks(4).lineage.folder
    folder = tmp_path / "hf" / "exports" / name
    assert not leftover.exists()
    assert events[0][0]["folder"] == str(folder)
    model = drawn(ARGS, seed=9)
    expected = {n: t.bfloat16() for n, t in hf.to_hf(model.state_dict(), ARGS).items()}
    source = SafetensorsFolder(folder)
    assert source.shapes.keys() == expected.keys()
    for n, tensor in expected.items():
        assert torch.equal(source.read(n, tuple(slice(0, e) for e in tensor.shape)), tensor), n
    alone = OpenCheckpoint(tmp_path / "alone" / "exports" / name, secret=None)
    assert all(torch.equal(alone.read(n), t.bfloat16()) for n, t in model.state_dict().items())
    assert alone.manifest.keys.keys() == {MODEL + n for n in model.state_dict()}
    to_hf(alone.path, tmp_path / "from-alone")
    assert (tmp_path / "from-alone" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert [path.name for path in (tmp_path / "other" / "exports").iterdir()] == []
