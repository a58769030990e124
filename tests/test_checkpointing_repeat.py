"""Saves that repeat what stock DCP wrote: its files to the byte, read by stock torch, each with its own state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median_low

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from checkpointing import storage
from checkpointing.digest import state_digest
from checkpointing.fellows import Fellows
from checkpointing.manifest import MANIFEST, METADATA
from checkpointing.resume import load
from checkpointing.staging import Staged, Staging
from checkpointing.storage import FolderWriter
from tests.support import sharded
from tests.support.ranks import run_ranks
from tests.support.states import clocks, lineage, same

SAVES = 30


def every_kind(seed: int) -> dict[str, torch.Tensor]:
    """A state of every dtype and shape that one may hold, with gaps in memory and with shared memory."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn(9, 8, generator=random)
    shared = torch.randn(4, 4, generator=random)
    state = {
        "float32": wide.clone(),
        "columns": wide[:, 2:5],
        "transposed": wide.t(),
        "tied": shared,
        "twin": shared,
        "part": shared[1:3],
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 3),
        "large": torch.randn(70_000, generator=random),
        "int64": torch.randint(-9, 9, (3, 3), generator=random),
        "uint8": torch.randint(0, 255, (5,), generator=random, dtype=torch.uint8),
        "bool": torch.rand(11, generator=random) > 0.5,
        "float8": torch.randn(6, generator=random).to(torch.float8_e4m3fn),
    }
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64):
        state[str(dtype).removeprefix("torch.")] = torch.randn(7, generator=random).to(dtype)
    return state


class Saver:
    """Stages and writes as the checkpoint writer does, and counts the saves that were stock DCP's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stock = 0
        self._staging = Staging(pinned=False)
        self._writer = FolderWriter(
            folder, fellows=Fellows(None), writer="g0.1", secret=None, failpoint=lambda *_, **__: None
        )
        real = storage.save

        def counted(*args, **kwargs):
            self.stock += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(storage, "save", counted)

    def save(self, state: Mapping[str, torch.Tensor], step: int, *, staged: bool = True) -> Path:
        unfinished, size, _ = self._writer.write(self._staging.copy(state) if staged else Staged(state), clocks(step))
        assert unfinished is not None
        unfinished.publish()
        path = self.folder / lineage(step).folder
        assert size == sum(file.stat().st_size for file in path.iterdir() if file.name != MANIFEST)
        return path


@pytest.fixture
def saver(tmp_path, monkeypatch) -> Saver:
    return Saver(tmp_path / "checkpoints", monkeypatch)


def loaded(path: Path, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: torch.zeros_like(tensor, memory_format=torch.contiguous_format) for name, tensor in like.items()}
    load(path, found, group=None, secret=None)
    return found


def test_a_repeated_save_writes_the_bytes_that_stock_dcp_writes(saver, tmp_path, monkeypatch):
    saver.save(every_kind(1), 1)
    repeated = saver.save(every_kind(2), 2)
    assert saver.stock == 1
    other = Saver(tmp_path / "stock", monkeypatch)
    stock = other.save(every_kind(2), 2)
    assert other.stock == 1
    names = sorted(file.name for file in stock.iterdir())
    assert names == [METADATA, "__0_0.distcp", MANIFEST]
    for name in (METADATA, "__0_0.distcp"):
        assert (repeated / name).read_bytes() == (stock / name).read_bytes()


def test_every_dtype_shape_and_kind_of_memory_comes_back_to_the_bit(saver):
    states = {step: every_kind(step) for step in (1, 2, 3)}
    paths = {step: saver.save(state, step) for step, state in states.items()}
    assert saver.stock == 1
    for step, state in states.items():
        found = loaded(paths[step], state)
        assert same(found, state)
        digest = state_digest(found, clocks(step), group=None)
        assert digest == state_digest(state, clocks(step), group=None)


def test_stock_torch_reads_a_repeated_save(saver, tmp_path):
    state = every_kind(2)
    saver.save(every_kind(1), 1)
    path = saver.save(state, 2)
    found = {name: torch.zeros_like(tensor, memory_format=torch.contiguous_format) for name, tensor in state.items()}
    dcp_load(found, storage_reader=FileSystemReader(path), no_dist=True)
    assert same(found, state)
    out = tmp_path / "whole.pt"
    dcp_to_torch_save(path, out)  # what its command line calls
    assert same(dict(sorted(torch.load(out, weights_only=True).items())), dict(sorted(state.items())))


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_load_reads_the_slice_of_one_tensor(saver, tmp_path, mmap):
    state = every_kind(2)
    saver.save(every_kind(1), 1)
    path = saver.save(state, 2)
    slices = FileSystemReader(path).read_metadata().storage_data
    assert len(slices) == len(state)
    for index, at in slices.items():
        alone = tmp_path / index.fqn
        alone.write_bytes((path / at.relative_path).read_bytes()[at.offset : at.offset + at.length])
        tensor = torch.load(alone, weights_only=True, mmap=mmap)
        assert same({"it": tensor}, {"it": state[index.fqn]})


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state | {"float32": torch.ones(8, 9)},
        lambda state: state | {"float32": torch.ones(9, 8, dtype=torch.float64)},
        lambda state: state | {"int64": torch.ones(9, dtype=torch.int64)},
        lambda state: state | {"more": torch.ones(2)},
        lambda state: {name: tensor for name, tensor in state.items() if name != "tied"},
        lambda state: dict(reversed(state.items())),
    ],
    ids=["shape", "dtype", "rank", "more", "fewer", "order"],
)
def test_another_layout_is_saved_by_stock_dcp_and_repeated_from_then_on(saver, change):
    saver.save(every_kind(1), 1)
    changed = [change(every_kind(seed)) for seed in (2, 3)]
    paths = [saver.save(state, step) for step, state in enumerate(changed, 2)]
    assert saver.stock == 2
    for path, state in zip(paths, changed, strict=True):
        assert same(loaded(path, state), state)


def test_memory_with_gaps_that_nobody_staged_is_never_repeated(saver):
    """An archive names the strides of its tensor, and zeros look the same in every order."""
    states = [{"transposed": torch.zeros(3, 2).t()}, {"transposed": torch.arange(6.0).reshape(3, 2).t()}]
    paths = [saver.save(state, step, staged=False) for step, state in enumerate(states, 1)]
    assert saver.stock == 2
    assert same(loaded(paths[1], states[1]), states[1])


def test_what_stock_dcp_wrote_otherwise_than_expected_is_never_repeated(saver, monkeypatch):
    real = storage.file_digest
    monkeypatch.setattr(storage, "file_digest", lambda *args, **kwargs: real(*args, **kwargs)[::-1])
    for step in (1, 2):
        saver.save(every_kind(step), step)
    assert saver.stock == 2


# ---- two ranks -------------------------------------------------------------------------------------------------------


def _writer(folder: Path) -> tuple[FolderWriter, Fellows]:
    fellows = Fellows(sharded.dedicated())
    return (
        FolderWriter(folder, fellows=fellows, writer="g0.1", secret=b"key", failpoint=lambda *_, **__: None),
        fellows,
    )


def _publish(folder: Path, writer: FolderWriter, state: Mapping[str, torch.Tensor], step: int) -> Path:
    unfinished, _, _ = writer.write(Staging(pinned=False).copy(state), clocks(step))
    if unfinished is not None:
        unfinished.publish()
    dist.barrier()
    return folder / lineage(step).folder


def one_rank_changes(rank: int, world: int, folder: Path) -> list[bool]:
    """Shards by rows and by columns, uneven and empty ones; then rank 1 alone holds one tensor more."""
    mesh = init_device_mesh("cpu", (world,))
    writer, fellows = _writer(folder)

    def state(seed: int, *, more: bool) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        held: dict[str, torch.Tensor] = {
            "rows": distribute_tensor(torch.randn(5, 3, generator=random), mesh, [Shard(0)]),
            "columns": distribute_tensor(torch.randn(4, 5, generator=random), mesh, [Shard(1)]),
            "one": distribute_tensor(torch.randn(1, 2, generator=random), mesh, [Shard(0)]),
            "everywhere": torch.tensor(float(seed)),
        }
        return held | ({f"of rank {rank}": torch.full((2,), seed + 0.5)} if more and rank == 1 else {})

    repeats = []
    for step, more in ((1, False), (2, False), (3, True), (4, True), (5, False)):
        repeats.append(writer._repeat is not None and writer._repeat.fits(Staged(state(step, more=more))))
        path = _publish(folder, writer, state(step, more=more), step)
        found = state(99, more=more)
        assert load(path, found, group=fellows.group, secret=b"key") == clocks(step)
        expected = state(step, more=more)
        for name, tensor in found.items():
            ours, theirs = (t.to_local() if hasattr(t, "to_local") else t for t in (tensor, expected[name]))
            assert torch.equal(ours, theirs), (step, name)
    return repeats


def test_all_ranks_go_back_to_stock_dcp_when_one_must(tmp_path):
    first, second = run_ranks(one_rank_changes, 2, tmp_path, tmp_path / "checkpoints")
    assert first == [False, True, True, True, True]  # what it holds stays; rank 1 decides
    assert second == [False, True, False, True, False]


def thirty_saves(rank: int, world: int, folder: Path) -> tuple[int, int]:
    """(bytes of memory after a few saves, and after all): medians of five, for allocators return some MB at times."""
    mesh = init_device_mesh("cpu", (world,))
    writer, _ = _writer(folder)
    whole = torch.ones(1 << 19)
    state = {f"w{i}": distribute_tensor(whole, mesh, [Shard(0)]) for i in range(4)}
    memory = []
    for step in range(1, SAVES + 1):
        for tensor in state.values():
            tensor.add_(1)
        path = _publish(folder, writer, state, step)
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        if rank == 0 and step > 1:
            for file in (folder / lineage(step - 1).folder).iterdir():
                file.unlink()
    read = {name: distribute_tensor(whole, mesh, [Shard(0)]) for name in state}
    load(path, read, group=sharded.dedicated(), secret=b"key")
    assert all(torch.equal(read[name].to_local(), tensor.to_local()) for name, tensor in state.items())
    return median_low(memory[3:8]), median_low(memory[-5:])


def test_memory_does_not_grow_with_the_saves(tmp_path):
    for early, late in run_ranks(thirty_saves, 2, tmp_path, tmp_path / "checkpoints"):
        assert late - early < 4 << 20, "25 saves of 4 MiB by each rank"
