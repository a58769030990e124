"""Which keys of loading are refused together, and what a path means."""

from __future__ import annotations

import pytest

from checkpointing.errors import CheckpointError
from configs.load import ConfigError, parse_text
from trainer.initial_checkpoint import find, skipped

CLOCKS = "lr_scheduler,data_loader,train_state"
PATH = "--checkpoint.initial_load_path=/some/where"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--checkpoint.exclude_from_loading=optimizer"], "checkpoint.exclude_from_loading"),
        ([PATH, "--checkpoint.exclude_from_loading=optimiser"], "checkpoint.exclude_from_loading"),
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
