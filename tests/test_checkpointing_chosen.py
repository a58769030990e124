"""A request to go back is met once; foreign folders are read only on trust, and whole."""

from __future__ import annotations

import os

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from checkpointing.chosen import NOTE, met, noted, remember
from checkpointing.errors import CheckpointError
from checkpointing.stock import load_stock
from tests.support.states import lineage, same, tensors

OLD = [lineage(step, 3) for step in (4, 5, 6)]


def test_a_request_is_met_once_the_run_has_saved_since(tmp_path):
    assert not met(tmp_path, 5, OLD)
    remember(tmp_path, 5, OLD)
    assert not met(tmp_path, 5, OLD), "killed before its first save"
    remember(tmp_path, 5, OLD)
    after = [*OLD, lineage(6, 4)]
    assert met(tmp_path, 5, after)
    remember(tmp_path, 5, after)
    assert met(tmp_path, 5, after), "the note is of the first time"
    assert not met(tmp_path, 4, after), "another request"
    remember(tmp_path, 4, after)
    assert not met(tmp_path, 4, after)


def test_where_nothing_is_yet_the_request_is_noted_all_the_same(tmp_path):
    folder = tmp_path / "checkpoints"
    assert not noted(folder, 5)
    remember(folder, 5, [])
    assert noted(folder, 5)
    assert not noted(folder, 4)
    assert not met(folder, 5, [])
    assert met(folder, 5, [lineage(6, 4)])


def test_without_a_request_the_note_goes(tmp_path):
    remember(tmp_path, 5, OLD)
    assert not met(tmp_path, -1, OLD)
    assert not (tmp_path / NOTE).exists()
    (tmp_path / NOTE).write_text("[]")
    assert not met(tmp_path, 5, OLD), "a damaged note is none"
    remember(tmp_path, 5, OLD)
    assert met(tmp_path, 5, [lineage(6, 4)])


def test_a_stock_folder_is_read_whole_or_not_at_all(tmp_path):
    path = tmp_path / "stock"
    save(tensors(3), checkpoint_id=path, no_dist=True)
    into = tensors(0)
    load_stock(path, into, group=None)
    assert same(into, tensors(3))
    more = tensors(0) | {"model.more": torch.zeros(1)}
    del more["model.half"]
    with pytest.raises(CheckpointError, match=r"missing in the checkpoint: model\.more; only in the .*: model\.half"):
        load_stock(path, more, group=None)
    assert torch.equal(more["model.weight"], tensors(0)["model.weight"])
    weights = {name: tensor for name, tensor in tensors(0).items() if name.startswith("model.")}
    load_stock(path, weights, group=None, skip=("optim.",))
    with pytest.raises(CheckpointError, match=r"model\.weight is \[40, 5\], the model has \[41, 5\]"):
        load_stock(path, tensors(0, rows=41), group=None)


def test_what_cannot_be_unpickled_is_an_error(tmp_path):
    (tmp_path / ".metadata").write_bytes(os.urandom(20))
    with pytest.raises(CheckpointError, match=r"\.metadata cannot be read"):
        load_stock(tmp_path, tensors(0), group=None)
