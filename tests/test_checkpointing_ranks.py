"""Saves by two ranks of one group: agreed, beside training's own collectives, and read back at another size."""

from __future__ import annotations

import logging
import resource
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing.digest import state_digest
from checkpointing.errors import CheckpointError
from checkpointing.objects import ObjectPlace
from checkpointing.resume import load
from checkpointing.transfer import StateServer, fetch
from checkpointing.writer import BUSY, Checkpointer
from configs.load import parse_text
from tests.support import sharded
from tests.support.ranks import run_ranks
from tests.support.states import Recorder, clocks, flip, lineage, names
from trainer.initial_checkpoint import checkpoint_start

SAVES = 30


def save_every_step(rank: int, world: int, folder: Path) -> list[str]:
    """30 steps that change the state and talk to the fellows, each with a save: the digest after each step."""
    state, sink = sharded.state(world), Recorder()
    saver = Checkpointer(folder, group=sharded.dedicated(), writer="g0.1", keep_latest_k=0, sink=sink)
    saver.start()
    digests = []
    noise = torch.ones(10_000)
    for step in range(1, SAVES + 1):
        for tensor in state.values():
            with torch.no_grad():
                tensor.add_(1)
        saver.maybe_save(tensors=state, clocks=clocks(step), turn=True)
        for _ in range(3):  # training's own collectives, while the save is written
            dist.all_reduce(noise)
        digests.append(state_digest(state, clocks(step), group=None if world == 1 else dist.group.WORLD))
        saver.confirm(lineage(step))
    saver.finish(tensors=state, clocks=clocks(SAVES))
    assert saver.close(wait_s=30)
    if rank == 0:
        statuses = [status for _, status in sink.statuses()]
        assert len(statuses) in (SAVES, SAVES + 1)
        assert set(statuses) <= {"saved", "skipped"}
        assert all(event.get("reason", BUSY) == BUSY for event in sink.events)
        saved = {step for step, status in sink.statuses() if status == "saved"}
        assert names(folder) == [lineage(step).folder for step in sorted(saved)]
    return digests


def read_all(rank: int, world: int, folder: Path) -> dict[int, str]:
    state = sharded.state(world, filled=False)
    group = sharded.dedicated()
    found = {}
    for name in names(folder):
        read = load(folder / name, state, group=group, secret=None)
        found[read.step] = state_digest(state, read, group=group)
    flip(folder / name / f"__{rank}_0.distcp", 2000) if rank == world - 1 else None
    dist.barrier()
    with pytest.raises(CheckpointError, match=r"__\d_0\.distcp is damaged"):  # on every rank, whoever found it
        load(folder / name, state, group=group, secret=None)
    return found


def test_thirty_saves_one_each_step_beside_training_are_whole_at_any_size(tmp_path):
    digests, others = run_ranks(save_every_step, 2, tmp_path, tmp_path / "checkpoints")
    assert digests == others
    expected = {step: digests[step - 1] for step in range(1, SAVES + 1)}
    (alone,) = run_ranks(read_all, 1, tmp_path, tmp_path / "checkpoints")
    assert alone
    assert SAVES in alone
    assert all(expected[step] == digest for step, digest in alone.items())


def disk_full_on_one_rank(rank: int, world: int, folder: Path) -> list[tuple[int, str]]:
    """Rank 1 cannot write more than 1 kB per file; then it can again."""
    logging.disable()
    sink = Recorder()
    saver = Checkpointer(folder, group=sharded.dedicated(), writer="g0.1", sink=sink)
    saver.start()
    state = sharded.state(world)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save(step: int) -> None:
        saver.maybe_save(tensors=state, clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        saver.wait()
        dist.barrier()

    save(1)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    save(2)
    with pytest.raises(CheckpointError, match="rank 1"):
        saver.finish(tensors=state, clocks=clocks(2))
    assert saver.counts["failed"] == 2
    if rank == 0:
        assert names(folder) == [lineage(1).folder]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    save(3)
    saver.finish(tensors=state, clocks=clocks(4))
    return sink.statuses()


def test_a_full_disk_on_one_rank_is_a_failed_save_on_all_and_hangs_nobody(tmp_path):
    first, second = run_ranks(disk_full_on_one_rank, 2, tmp_path, tmp_path / "checkpoints")
    assert first == [(1, "saved"), (2, "failed"), (2, "failed"), (3, "saved"), (4, "saved")]
    assert second == []
    assert names(tmp_path / "checkpoints") == [lineage(step).folder for step in (1, 3, 4)]


def uneven_turns(rank: int, world: int, folder: Path) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """Rank 1 cannot stage one turn and is slow at another: what the ranks do stays agreed."""
    logging.disable()
    sink = Recorder()
    gate = threading.Event()
    at: dict[str, int] = {}

    def failpoint(name: str, **_) -> None:
        if rank == 1 and name == "save_stage" and at.get("step") == 1:
            raise MemoryError("no room to stage") if world == 1 else RuntimeError("no room to stage")
        if rank == 1 and name == "save_write" and not gate.wait(30):
            raise RuntimeError("the gate stayed shut")

    group = sharded.dedicated()
    saver = Checkpointer(folder, group=group, writer="g0.1", sink=sink, failpoint=failpoint)
    saver.start()
    state = sharded.state(world)
    for step in (1, 2, 3):
        at["step"] = step
        saver.maybe_save(tensors=state, clocks=clocks(step), turn=True)
        saver.confirm(lineage(step))
        if step == 1:
            saver.wait()
    gate.set()
    saver.wait()
    return sink.statuses(), saver.counts


def test_ranks_agree_on_turns_that_one_of_them_cannot_take(tmp_path):
    (events, counts), (_, others) = run_ranks(uneven_turns, 2, tmp_path, tmp_path / "checkpoints")
    assert events == [(1, "failed"), (2, "saved"), (3, "skipped")]
    assert (counts["failed"], counts["skipped"]) == (others["failed"], others["skipped"]) == (1, 1)
    assert names(tmp_path / "checkpoints") == [lineage(2).folder]


def save_and_begin_in_a_store(rank: int, world: int, url: str, spool: Path) -> tuple[str, str, str]:
    """(digest saved, digest begun with, why nothing can begin from an empty place)."""
    state, group = sharded.state(world), sharded.dedicated()
    place = ObjectPlace(url, spool=spool, secret=None)
    saver = Checkpointer(spool, group=group, writer="g0.1", place=place)
    saver.start()
    saver.finish(tensors=state, clocks=clocks(1))
    assert saver.close(wait_s=30)
    dist.barrier()

    def begin(given: str) -> tuple[str | None, dict[str, torch.Tensor]]:
        words = ["--checkpoint.initial_load_model_only=false", f"--checkpoint.initial_load_path={given}"]
        words.append("--checkpoint.exclude_from_loading=lr_scheduler,data_loader,train_state")
        into = sharded.state(world, filled=False)
        fill = checkpoint_start(parse_text("", words), into, group=group, secret=None, spool=spool / "initial")
        assert fill is not None
        return fill(), into

    source, into = begin(url)
    assert source == f"{url}/{lineage(1).folder}"
    with pytest.raises(CheckpointError) as error:
        begin(f"{url}-not")
    digests = [state_digest(each, clocks(1), group=group) for each in (state, into)]
    return digests[0], digests[1], error.value.reason


def test_two_ranks_save_in_a_store_and_begin_from_it(tmp_path):
    url = f"file://{tmp_path}/store/run"
    first, second = run_ranks(save_and_begin_in_a_store, 2, tmp_path, url, tmp_path / "spool")
    assert first == second
    assert first[0] == first[1]
    assert f"'{url}-not' holds no checkpoint that can be used" in first[2]
    assert names(tmp_path / "spool") == []


def heal_a_group(rank: int, world: int) -> tuple[str, str]:
    """Rank k takes its shards from rank k of another group; here both groups live in the same processes."""
    source, healer = sharded.state(world), sharded.state(world, filled=False)
    server = StateServer()
    server.open(attempt=1, quorum_id=2, lineage=lineage(5), tensors=source, clocks=clocks(5))
    received = fetch(
        [server.address],
        attempt=1,
        quorum_id=2,
        lineage=lineage(5),
        tensors=healer,
        on_first_byte=lambda: None,
        stop=lambda: False,
    )
    server.stop()
    group = sharded.dedicated()
    return state_digest(source, clocks(5), group=group), state_digest(healer, received.clocks, group=group)


def test_a_healed_groups_digest_is_its_sources(tmp_path):
    for source, healed in run_ranks(heal_a_group, 2, tmp_path):
        assert source == healed
