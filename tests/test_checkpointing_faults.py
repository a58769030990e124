"""Faults that users of trainers have reported of checkpoints, and the tests of each; some of these are here.

Each was reported in a public tracker, which the key names. What is right stands in the tests.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from checkpointing.errors import CheckpointError
from checkpointing.resume import load, survey
from checkpointing.state import closed_list, ensure_optimizer_state
from checkpointing.writer import Checkpointer
from configs.words import Lineage
from tests.support import sharded
from tests.support.ranks import run_ranks
from tests.support.states import clocks, lineage, same
from tests.support.training import bits, rig

TESTED_BY = {
    "KempnerForge #102, torchtitan PR#4197: the old one went before the new one was durable": [
        "test_with_one_kept_the_old_one_stays_until_the_new_one_is_durable",
        "test_killed_at_twenty_random_moments_there_is_always_a_valid_one_and_never_one_too_many",
        "test_everything_is_on_disk_before_the_name_appears_and_the_manifest_comes_last",
    ],
    "KempnerForge #104, UniRL PR#410: saving and training met in one process group": [
        "test_thirty_saves_one_each_step_beside_training_are_whole_at_any_size",
    ],
    "VeOmni PR#1162, orbax #605: a failed background save was swallowed": [
        "test_a_disk_that_is_full_or_read_only_or_gone_costs_saves_and_nothing_else_until_the_last",
        "test_a_full_disk_fails_saves_says_so_and_works_again_when_there_is_room",
        "test_a_full_disk_on_one_rank_is_a_failed_save_on_all_and_hangs_nobody",
        "test_a_failed_save_is_reported_leaves_nothing_and_the_next_one_works",
        "test_a_store_that_is_full_costs_saves_and_nothing_else",
    ],
    "torchtitan PR#315, Lightning #19970: a half-written folder was chosen": [
        "test_a_damaged_newest_is_passed_over_with_its_reason",
        "test_a_leftover_temporary_name_is_no_checkpoint",
        "test_a_damaged_newest_checkpoint_is_passed_over_and_the_run_goes_on_from_the_one_before",
        "test_without_its_manifest_a_prefix_is_no_checkpoint_and_goes_when_it_is_old",
    ],
    "torchtitan PR#4599: several groups wrote and purged one folder": [
        "test_each_step_has_one_writer_and_another_takes_over_when_it_dies",
        "test_each_due_step_is_saved_by_one_and_all_take_turns",
        "test_a_state_that_another_group_has_saved_is_not_saved_again",
    ],
    "torchtitan PR#4424: the disk filled up": [
        "test_two_hundred_steps_keep_the_disk_flat",
        "test_old_ones_go_milestones_and_foreign_folders_stay",
        "test_old_ones_go_milestones_and_strangers_stay_and_a_rolled_back_branch_is_set_aside",
    ],
    "RLinf PR#1570, Megatron-LM PR#6858: one rank's random state was restored on all": [
        "test_every_rank_draws_and_reads_after_a_resume_what_it_would_have",
        "test_killed_rank_loses_no_sample",
    ],
    "pytorch #126881, Soup #351: a part was loaded in silence": [
        "test_missing_and_extra_keys_and_other_shapes_are_listed",
        "test_a_renamed_parameter_or_a_missing_optimizer_is_listed_name_by_name",
        "test_a_stock_folder_is_read_whole_or_not_at_all",
    ],
    "pytorch #140898: empty optimizer state": [
        "test_state_before_the_first_step_is_what_torch_makes_lazily",
        "test_states_before_the_first_step_and_without_optimizer_state_come_back",
    ],
    "NeMo-RL PR#4183: every save held the bytes of the first": [
        "test_each_save_holds_its_own_bytes_in_the_same_buffers",
        "test_thirty_saves_one_each_step_beside_training_are_whole_at_any_size",
    ],
    "pytorch #170163: memory grew with each save": [
        "test_memory_does_not_grow_with_the_number_of_saves",
    ],
    "NVFlare PR#5011: no fsync before the rename": [
        "test_everything_is_on_disk_before_the_name_appears_and_the_manifest_comes_last",
    ],
    "pytorch #144752: fsync on an object store": [
        "test_saved_states_read_back_to_the_bit_and_leave_no_local_copy",
        "test_the_manifest_comes_last_and_only_after_the_rest_is_there",
    ],
    "marin #5386: a resumed run wrote over a newer history": [
        "test_a_wanted_step_must_exist_and_going_back_is_a_fork",
        "test_going_back_to_a_chosen_step_is_met_once_and_needs_a_fork",
        "test_a_branch_that_was_rolled_back_is_set_aside_when_the_new_one_is_durable",
        "test_a_bad_folder_of_the_same_name_is_set_aside_not_written_over",
    ],
}


def test_every_fault_has_its_tests():
    tests = "\n".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    wanted = {name for found in TESTED_BY.values() for name in found}
    assert not {name for name in wanted if not re.search(rf"^def {name}\(", tests, re.MULTILINE)}


# ---- what each rank draws and reads ----------------------------------------------------------------------------------

BEFORE, AFTER = 4, 5


def _train(made, steps: int) -> list[tuple[list[float], list[int]]]:
    """Five draws of each step's first forward, and the microbatches that were read."""
    seen = []
    drawn: list[list[float]] = []
    with made.parts.model.layer.register_forward_hook(lambda *_: drawn.append(torch.rand(5).tolist())):
        for _ in range(steps):
            drawn.clear()
            made.text.asked.clear()
            made.attempt()
            seen.append((drawn[0], list(made.text.asked)))
    return seen


def _uninterrupted(rank: int, world: int, folder: Path):
    made = rig(world=world, rank=rank)
    saver = Checkpointer(folder, group=sharded.dedicated(), writer="g0.1")
    saver.start()
    seen = _train(made, BEFORE)
    saver.finish(tensors=made.state.tensors, clocks=made.state.clocks)
    assert saver.close(wait_s=30)
    return seen + _train(made, AFTER), bits(made.state.tensors)


def _resumed(rank: int, world: int, folder: Path):
    """In new processes whose generators have gone elsewhere."""
    made = rig(world=world, rank=rank)
    torch.manual_seed(100 + rank)
    torch.rand(17 * (rank + 1))
    found = survey(folder, secret=None).found[0]
    made.state.clocks = load(found.path, made.state.tensors, group=sharded.dedicated(), secret=None)
    assert made.state.clocks.step == BEFORE
    return _train(made, AFTER), bits(made.state.tensors)


def test_every_rank_draws_and_reads_after_a_resume_what_it_would_have(tmp_path):
    whole = run_ranks(_uninterrupted, 2, tmp_path, tmp_path / "checkpoints")
    resumed = run_ranks(_resumed, 2, tmp_path, tmp_path / "checkpoints")
    for (seen, state), (again, same_state) in zip(whole, resumed, strict=True):
        assert again == seen[BEFORE:]
        assert same_state == state
    first, second = (seen for seen, _ in whole)
    assert all(a[0] != b[0] for a, b in zip(first, second, strict=True)), "each rank has draws of its own"
    assert len({tuple(draws) for draws, _ in first}) == BEFORE + AFTER


# ---- keys and optimizer state ----------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self, name: str = "head") -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.add_module(name, nn.Linear(4, 2, bias=False))


def _stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    optimizer.zero_grad()


def _saved(folder: Path, state: dict[str, torch.Tensor], step: int) -> Path:
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=0)
    saver.start()
    saver.finish(tensors=state, clocks=clocks(step))
    assert saver.close(wait_s=30)
    return folder / lineage(step).folder


def test_a_renamed_parameter_or_a_missing_optimizer_is_listed_name_by_name(tmp_path):
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    _stepped(model, optimizer)
    whole = closed_list([model], [optimizer])
    path = _saved(tmp_path / "whole", whole, 1)
    renamed = Small("output")
    other = torch.optim.AdamW(renamed.parameters())
    ensure_optimizer_state(other)
    into = closed_list([renamed], [other])
    before = {name: tensor.clone() for name, tensor in into.items()}
    with pytest.raises(CheckpointError) as error:
        load(path, into, group=None, secret=None)
    for missing, extra in (("output", "head"),):
        for suffix in ("exp_avg", "exp_avg_sq", "step"):
            assert f"optim.{missing}.weight.{suffix}" in error.value.reason
            assert f"optim.{extra}.weight.{suffix}" in error.value.reason
        assert f"missing in the checkpoint: model.{missing}.weight" in error.value.reason
        assert f"only in the checkpoint: model.{extra}.weight" in error.value.reason
    assert same(before, into), "nothing was loaded"
    alone = _saved(tmp_path / "weights", closed_list([model], []), 1)
    with pytest.raises(CheckpointError) as error:
        load(alone, closed_list([model], [optimizer]), group=None, secret=None)
    listed = error.value.reason.partition("missing in the checkpoint: ")[2].split(", ")
    assert listed == sorted(name for name in whole if name.startswith("optim."))


def test_states_before_the_first_step_and_without_optimizer_state_come_back(tmp_path):
    def made(seed: int):
        torch.manual_seed(seed)
        model = Small()
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer

    fresh, fresh_optimizer = made(1)
    with pytest.raises(ValueError, match="optimizer state"):
        closed_list([fresh], [fresh_optimizer])  # an empty one is not saved in silence
    ensure_optimizer_state(fresh_optimizer)
    path = _saved(tmp_path / "fresh", closed_list([fresh], [fresh_optimizer]), 1)
    used, used_optimizer = made(2)
    _stepped(used, used_optimizer)
    load(path, closed_list([used], [used_optimizer]), group=None, secret=None)
    for model, optimizer in ((fresh, fresh_optimizer), (used, used_optimizer)):
        _stepped(model, optimizer)
    first, again = closed_list([fresh], [fresh_optimizer]), closed_list([used], [used_optimizer])
    assert same(first, again), "the first step after it is a first step"

    frozen, other = (made(seed)[0].requires_grad_(False) for seed in (3, 4))
    state = closed_list([frozen], [torch.optim.AdamW(frozen.parameters())])
    assert not any(name.startswith("optim.") for name in state)
    into = closed_list([other], [torch.optim.AdamW(other.parameters())])
    load(_saved(tmp_path / "frozen", state, 1), into, group=None, secret=None)
    assert same(into, state)


# ---- memory ----------------------------------------------------------------------------------------------------------


def _resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _many_saves(rank: int, world: int, folder: Path) -> tuple[int, list[int]]:
    """(bytes of the state, resident bytes after each tenth save)."""
    state = {f"model.{number}": torch.rand(64, 4096) for number in range(8)}
    saver = Checkpointer(folder, group=sharded.dedicated(), writer="g0.1", keep_latest_k=1)
    saver.start()
    resident = []
    for step in range(1, 61):
        saver.maybe_save(tensors=state, clocks=clocks(step), turn=True)
        saver.confirm(Lineage(step, clocks(step).quorum_id))
        saver.wait()
        if step % 10 == 0:
            resident.append(_resident())
    dist.barrier()
    assert saver.close(wait_s=30)
    assert rank or saver.counts["saved"] == 60
    return sum(tensor.nbytes for tensor in state.values()), resident


def test_memory_does_not_grow_with_the_number_of_saves(tmp_path):
    ((size, resident),) = run_ranks(_many_saves, 1, tmp_path, tmp_path / "checkpoints")
    assert resident[-1] - resident[1] < size / 2, (
        resident
    )  # forty saves later; one leaked copy would be as much as size
