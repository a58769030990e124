"""A run that begins with another's checkpoint takes what was asked for, says so, and takes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpointing.errors import CheckpointError
from checkpointing.manifest import MANIFEST
from checkpointing.objects import ObjectPlace
from checkpointing.opened import write_seed
from checkpointing.writer import Checkpointer
from configs.load import ConfigError, parse_text
from configs.words import Exit
from tests.support.states import clocks, flip, lineage, same, tensors
from trainer.initial_checkpoint import checkpoint_start, skipped

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


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with the steps 1 to 3."""
    saver = Checkpointer(tmp_path / "run" / "checkpoints", group=None, writer="g0.1", keep_latest_k=0)
    saver.start()
    for step in (1, 2, 3):
        saver.finish(tensors=tensors(step), clocks=clocks(step))
    assert saver.close(wait_s=30)
    return tmp_path / "run"


def step_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / lineage(step).folder


def begin(
    path: Path | str, *words: str, spool: Path = Path("unused"), **changes: torch.Tensor
) -> tuple[str, dict[str, torch.Tensor]]:
    """(the folder that was taken, the state, which was that of seed 9)."""
    state = {name: tensor for name, tensor in (tensors(9) | changes).items() if tensor is not GONE}
    config = parse_text("", [f"--checkpoint.initial_load_path={path}", *words])
    fill = checkpoint_start(config, state, group=None, secret=None, spool=spool)
    assert fill is not None
    return fill(), state


WHOLE = ("--checkpoint.initial_load_model_only=false", f"--checkpoint.exclude_from_loading={CLOCKS}")
GONE = torch.empty(0)


def parts_of(state, prefix):
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


def test_the_path_may_be_a_step_a_folder_of_steps_or_a_run(run):
    for path, step in ((step_of(run, 2), 2), (run / "checkpoints", 3), (run, 3)):
        taken, state = begin(path, *WHOLE)
        assert taken == str(step_of(run, step))
        assert same(state, tensors(step))


def test_only_what_is_wanted_is_taken_and_said(run, capsys):
    _, state = begin(run)
    assert same(parts_of(state, "model."), parts_of(tensors(3), "model."))
    assert same(parts_of(state, "optim."), parts_of(tensors(9), "optim."))
    assert (
        f"step 0 takes model from {step_of(run, 3)}, of step 3; all else starts from the seed"
        in capsys.readouterr().out
    )
    _, state = begin(run, WHOLE[0], f"{WHOLE[1]},model")
    assert same(parts_of(state, "model."), parts_of(tensors(9), "model."))
    assert same(parts_of(state, "optim."), parts_of(tensors(3), "optim."))
    assert "step 0 takes optimizer from" in capsys.readouterr().out


def test_weights_alone_start_a_run_and_nothing_more(tmp_path):
    weights = {"weight": tensors(4)["model.weight"]}
    write_seed(tmp_path / "seed", {n: tuple(t.shape) for n, t in weights.items()}, weights.get, writer="x", secret=None)
    small = {"model.half": GONE, "model.nothing": GONE}
    _, state = begin(tmp_path / "seed", **small)
    assert torch.equal(state["model.weight"], weights["weight"])
    with pytest.raises(
        CheckpointError, match=r"missing in the checkpoint: optim\.weight\.exp_avg, optim\.weight\.step"
    ):
        begin(tmp_path / "seed", *WHOLE, **small)


def test_missing_and_extra_names_and_other_shapes_fail_with_the_list(run):
    with pytest.raises(CheckpointError, match=r"missing in the checkpoint: model\.new; only in the .*: model\.half"):
        begin(run, **{"model.new": torch.zeros(2), "model.half": GONE})
    with pytest.raises(CheckpointError, match=r"model\.weight is float32\[40, 5\], the model has float32\[3, 5\]"):
        begin(run, **{"model.weight": torch.zeros(3, 5)})


def test_the_newest_that_verifies_is_taken_and_each_passed_over_is_named(run, capsys):
    flip(step_of(run, 3) / "__0_0.distcp", 5000)
    (step_of(run, 2) / MANIFEST).unlink()
    taken, state = begin(run)
    assert taken == str(step_of(run, 1))
    assert same(parts_of(state, "model."), parts_of(tensors(1), "model."))
    said = capsys.readouterr().out
    assert f"passed over: {step_of(run, 3)} cannot be loaded: __0_0.distcp is damaged" in said
    assert f"passed over: {lineage(2).folder}: no manifest.json" in said
    flip(step_of(run, 1) / "__0_0.distcp", 5000)
    with pytest.raises(CheckpointError, match=r"(?s)can be used.*00000003.*00000002.*00000001") as error:
        begin(run)
    assert error.value.code is Exit.CHECKPOINT


def test_what_is_not_there_or_damaged_is_an_error_with_its_reason(run, tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(CheckpointError, match="holds no checkpoint that can be used"):
            begin(path)
    with pytest.raises(CheckpointError, match=r"nowhere' holds no checkpoint that can be used\s+no such folder"):
        begin(tmp_path / "nowhere")
    flip(step_of(run, 3) / "__0_0.distcp", 5000)
    with pytest.raises(CheckpointError, match="is damaged"):
        begin(step_of(run, 3))


def test_a_run_whose_groups_have_folders_of_their_own_says_which_to_name(run):
    (run / "config.toml").write_text('[checkpoint]\nfolder = "disk-{group}"\n')
    for group in ("g0", "g1"):
        (run / f"disk-{group}").mkdir()
    with pytest.raises(CheckpointError, match=rf"name one: {run}/disk-g0, {run}/disk-g1"):
        begin(run)
    (run / "config.toml").write_text("[checkpoint]\nfoldr = 1\n")  # another version's: what is there counts
    assert begin(run)[0] == str(step_of(run, 3))


def test_a_stock_folder_is_opened_on_request_only(run):
    (step_of(run, 3) / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"no digest vouches for it; checkpoint\.trust loads it"):
        begin(step_of(run, 3))
    _, state = begin(step_of(run, 3), "--checkpoint.trust", *WHOLE)
    assert same(state, tensors(3))


def test_a_path_without_a_checkpoint_names_what_is_there(tmp_path):
    (tmp_path / "step-00000003-17.3").mkdir()
    with pytest.raises(CheckpointError, match=r"(?s)holds no checkpoint.*step-00000003-17\.3: no manifest"):
        begin(tmp_path)


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

    def weights_of(step: int, given: str) -> str:
        source, state = begin(given, spool=spool)
        assert source == f"{url}/{lineage(step).folder}"
        assert torch.equal(state["model.weight"], tensors(step)["model.weight"])
        assert torch.equal(state["optim.weight.exp_avg"], tensors(9)["optim.weight.exp_avg"])
        assert not spool.exists()
        said = capsys.readouterr().out
        assert f"step 0 takes model from {source}, of step {step}" in said
        return said

    assert f"passed over: {lineage(3).folder}: no manifest.json" in weights_of(2, url)
    weights_of(2, f"{url}/")
    weights_of(1, f"{url}/{lineage(1).folder}")
    shard = f"{place._root}/{lineage(2).folder}/__0_0.distcp"
    data = bytearray(place._fs.cat_file(shard))
    data[2000] ^= 1
    place._fs.pipe_file(shard, bytes(data))
    assert "__0_0.distcp is damaged" in weights_of(1, url)
    place._fs.rm_file(f"{place._root}/{lineage(1).folder}/{MANIFEST}")
    with pytest.raises(
        CheckpointError, match=r"(?s)no checkpoint that can be used.*00000003.*its writer died.*damaged"
    ):
        begin(url, spool=spool)
    for step, reason in ((3, "its writer died"), (8, "nothing is there")):
        with pytest.raises(CheckpointError, match=f"(?s)no checkpoint that can be used.*{reason}"):
            begin(f"{url}/{lineage(step).folder}", spool=spool)
