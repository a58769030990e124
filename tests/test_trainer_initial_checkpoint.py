"""Which keys of loading are refused together, and what a path means."""

from __future__ import annotations

import pytest
import torch

from checkpointing.errors import CheckpointError
from checkpointing.manifest import MANIFEST
from checkpointing.objects import ObjectPlace
from checkpointing.writer import Checkpointer
from configs.load import ConfigError, parse_text
from tests.support.states import clocks, lineage, tensors
from trainer.initial_checkpoint import checkpoint_start, find, skipped

CLOCKS = "lr_scheduler,data_loader,train_state"
PATH = "--checkpoint.initial_load_path=/some/where"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--checkpoint.exclude_from_loading=optimizer"], "checkpoint.exclude_from_loading"),
        ([PATH, "--checkpoint.exclude_from_loading=optimiser"], "checkpoint.exclude_from_loading"),
        (["--checkpoint.initial_load_path=ftp://there"], "checkpoint.initial_load_path"),
        (
            ["--checkpoint.initial_load_path=s3://there", "--checkpoint.initial_load_in_hf"],
            "checkpoint.initial_load_path",
        ),
        ([PATH, "--checkpoint.exclude_from_loading=model"], "checkpoint.exclude_from_loading"),
        ([PATH, "--checkpoint.initial_load_model_only=false"], "checkpoint.initial_load_model_only"),
        (["--checkpoint.trust"], "checkpoint.trust"),
        (["--checkpoint.folder=memory://here"], "checkpoint.folder"),
    ],
)
def test_what_would_have_no_effect_is_refused(words, key):
    with pytest.raises(ConfigError) as caught:
        parse_text("", words)
    assert key in {problem.key for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "--checkpoint.async_mode=asinc",
            "'disabled', 'async' or 'async_with_pinned_mem', found 'asinc' (did you mean async?)",
        ),
        ("--checkpoint.async_mode=async_pinned", "(did you mean async_with_pinned_mem?)"),
        ("--checkpoint.export_dtype=bf16", "(did you mean bfloat16?)"),
        ("--checkpoint.exclude_from_loading=dataloader", "(did you mean data_loader?)"),
        ("--checkpoint.create_seed_checkpoint", "seed checkpoints (step 0 depends on debug.seed alone, never on"),
        ("--checkpoint.load_only", "not supported yet: loading without saving (checkpoint.interval says"),
        ("--checkpoint.loadstep=3", "unknown key (did you mean checkpoint.load_step?)"),
    ],
)
def test_a_refusal_names_what_is_nearest(word, said):
    with pytest.raises(ConfigError) as caught:
        parse_text("", [PATH, word])
    (problem,) = caught.value.problems
    assert said in str(problem)


@pytest.mark.parametrize("mode", ["async", "async_with_pinned_mem", "disabled"])
def test_every_mode_of_the_contract_is_taken(mode):
    assert parse_text("", [f"--checkpoint.async_mode={mode}"]).checkpoint.async_mode == mode


def test_what_is_left_out():
    whole = [PATH, "--checkpoint.initial_load_model_only=false", f"--checkpoint.exclude_from_loading={CLOCKS}"]
    assert skipped(parse_text("", whole)) == ()
    assert skipped(parse_text("", [PATH])) == ("optim.",)
    optimizer = [*whole[:2], f"--checkpoint.exclude_from_loading=model,{CLOCKS}"]
    assert skipped(parse_text("", optimizer)) == ("model.",)


def test_a_path_without_a_checkpoint_names_what_is_there(tmp_path):
    (tmp_path / "step-00000003-17.3").mkdir()
    with pytest.raises(CheckpointError, match=r"(?s)holds no checkpoint.*step-00000003-17\.3: no manifest"):
        find(tmp_path, secret=None)


@pytest.fixture
def store(tmp_path):
    """(URL, place) of a store with steps 1 and 2 and a third that was cut off."""
    url, spool = f"file://{tmp_path}/store/run", tmp_path / "writer"
    place = ObjectPlace(url, spool=spool, secret=None)
    saver = Checkpointer(spool, group=None, writer="g0.1", keep_latest_k=0, place=place)
    saver.start()
    for step in (1, 2, 3):
        saver.finish(tensors=tensors(step), clocks=clocks(step))
    assert saver.close(wait_s=30)
    (tmp_path / "store" / "run" / lineage(3).folder / MANIFEST).unlink()
    return url, place


def test_step_0_takes_weights_from_a_store(store, tmp_path, capsys):
    url, place = store
    spool = tmp_path / "spool"
    for given, step in ((url, 2), (f"{url}/{lineage(1).folder}", 1), (f"{url}/", 2)):
        into = tensors(0)
        config = parse_text("", [f"--checkpoint.initial_load_path={given}"])
        fill = checkpoint_start(config, into, group=None, secret=None, spool=spool)
        source = f"{url}/{lineage(step).folder}"
        assert fill() == source
        assert f"step 0 takes model from {source}, of step {step}" in capsys.readouterr().out
        assert torch.equal(into["model.weight"], tensors(step)["model.weight"])
        assert torch.equal(into["optim.weight.exp_avg"], tensors(0)["optim.weight.exp_avg"])
        assert not spool.exists()
    for step in (1, 2):
        place._fs.rm_file(f"{place._root}/{lineage(step).folder}/{MANIFEST}")
    config = parse_text("", [f"--checkpoint.initial_load_path={url}"])
    fill = checkpoint_start(config, into, group=None, secret=None, spool=spool)
    with pytest.raises(
        CheckpointError, match=r"(?s)no checkpoint that can be used.*00000003.*00000001.*its writer died"
    ):
        fill()
