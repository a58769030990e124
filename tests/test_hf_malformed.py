"""Descriptions of foreign weights with values that no reader expects: one clear error, of the file and the field."""

from __future__ import annotations

import json
import os

import pytest
import torch

from checkpointing.errors import CheckpointError
from checkpointing.hf_format import INDEX
from checkpointing.state import closed_list
from configs.load import parse_text
from configs.words import Exit
from ops.__main__ import main
from tests.support.weights import drawn, original, saved
from trainer.convert import FLAVOR_FILE, import_weights, to_hf
from trainer.data.errors import DataError
from trainer.data.sources import read_json_lines
from trainer.data.tokenizer import _special_names
from trainer.hf_folder import context_length
from trainer.initial import hf_start
from trainer.models.registry import get

DEEP = "[" * 200_000


@pytest.fixture
def folder(tmp_path, flavors):
    """A model folder."""
    to_hf(saved(tmp_path / "checkpoints", drawn(flavors["tiny"])), tmp_path / "hf", model="llama3", flavor="tiny")
    return tmp_path / "hf"


def say(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


BAD_CONFIG = {
    "context list": ({"max_position_embeddings": [1]}, "max_position_embeddings is [1], expected a whole number"),
    "context text": ({"max_position_embeddings": "abc"}, "max_position_embeddings is 'abc', expected a whole number"),
    "context infinite": ({"max_position_embeddings": float("inf")}, "max_position_embeddings is inf"),
    "context nan": ({"max_position_embeddings": float("nan")}, "max_position_embeddings is nan"),
    "context true": ({"max_position_embeddings": True}, "max_position_embeddings is True"),
    "rope list": ({"rope_parameters": [1]}, "rope_parameters is [1], expected a table"),
    "scaling text": ({"rope_parameters": None, "rope_scaling": "llama3"}, "rope_scaling is 'llama3', expected a table"),
    "heads": ({"num_attention_heads": [4]}, "num_attention_heads is [4], the flavor has 4"),
}


@pytest.mark.parametrize("kind", BAD_CONFIG)
def test_a_config_with_a_bad_value_is_refused_by_file_and_field(folder, flavors, kind, tmp_path, capfd):
    fields, reason = BAD_CONFIG[kind]
    say(folder, **fields)
    words = ["from-hf", str(folder), str(tmp_path / "out"), "--model", "llama3", "--flavor", "tiny"]
    assert main(["checkpoint", *words, "--json"]) == Exit.CHECKPOINT
    error = json.loads(capfd.readouterr().out)["error"]
    assert str(folder / "config.json") in error
    assert reason in error
    assert not (tmp_path / "out").exists()
    _launch_refuses(folder, flavors, reason)


def _launch_refuses(folder, flavors, reason):
    """What a rank does at step 0 ends with 6, from which nothing is started again."""
    keys = {"initial_load_in_hf": "true", "initial_load_path": folder}
    config = parse_text("[model]\nflavor = 'tiny'", [f"--checkpoint.{key}={value}" for key, value in keys.items()])
    tensors = closed_list([drawn(flavors["tiny"])])
    fill = hf_start(config, get("llama3"), tensors, tokenizer=folder / "none")
    assert fill is not None
    with pytest.raises(CheckpointError) as caught:
        fill()
    assert caught.value.code is Exit.CHECKPOINT
    assert reason in caught.value.reason


def test_a_whole_number_written_as_a_float_is_one(folder, tmp_path):
    say(folder, max_position_embeddings=512.0)
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    assert json.loads((tmp_path / "seed" / FLAVOR_FILE).read_text())["seq_len"] == 512


@pytest.mark.parametrize("text", [DEEP, '{"model_type": ' + DEEP, "[]", "\0"])
def test_json_that_is_none_or_nested_too_deeply_is_refused(folder, flavors, text, tmp_path):
    (folder / "config.json").write_text(text)
    _launch_refuses(folder, flavors, "config.json cannot be read: ")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    _launch_refuses(folder, flavors, "config.json cannot be read: ")


@pytest.mark.parametrize("name", ["a\0b.safetensors", "..", ""])
def test_an_index_with_odd_names_is_refused(folder, flavors, name):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    _launch_refuses(folder, flavors, "")
    (folder / INDEX).write_text(DEEP)
    _launch_refuses(folder, flavors, f"{INDEX} cannot be read: it is nested too deeply")


def test_original_weights_with_odd_descriptions_or_names_are_refused(tmp_path, flavors, capfd):
    params = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 300, "rope_theta": 5e5}
    folder = original(tmp_path / "meta", drawn(flavors["tiny"]), parts=1, params=params)
    words = ["from-meta", str(folder), str(tmp_path / "out"), "--model", "llama3", "--flavor", "tiny", "--json"]

    def refusal():
        assert main(["checkpoint", *words]) == Exit.CHECKPOINT
        return json.loads(capfd.readouterr().out)["error"]

    torch.save({0: torch.zeros(3)}, folder / "consolidated.00.pth")
    assert "consolidated.00.pth is no state of named tensors alone" in refusal()
    (folder / "consolidated.00.pth").write_bytes(b"\x80\x02]q\x00h\x05.")
    assert "consolidated.00.pth cannot be read" in refusal()
    (folder / "params.json").write_text(DEEP)
    assert "params.json cannot be read: it is nested too deeply" in refusal()
    (folder / "params.json").write_text(json.dumps(params | {"dim": "x" * 10_000}))
    assert len(refusal()) < 500


@pytest.mark.parametrize("said", ["[1]", DEEP, '{"model": [1], "flavor": "tiny", "seq_len": 8}', '{"model": "llama3"}'])
def test_what_lies_beside_an_imported_checkpoint_is_read_with_care(folder, tmp_path, said):
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    (tmp_path / "seed" / FLAVOR_FILE).write_text(said)
    with pytest.raises(CheckpointError, match=FLAVOR_FILE):
        to_hf(tmp_path / "seed", tmp_path / "again")


def test_what_lies_beside_a_tokenizer_and_lines_of_text_are_read_with_care(tmp_path):
    (tmp_path / "config.json").write_text(DEEP)
    assert context_length(str(tmp_path), trained=16) == 16
    (tmp_path / "tokenizer_config.json").write_text(DEEP)
    with pytest.raises(DataError, match=r"tokenizer_config\.json cannot be read"):
        _special_names(tmp_path / "tokenizer_config.json")
    (tmp_path / "text.jsonl").write_text(f"{DEEP}\n")
    with pytest.raises(DataError, match=r"text\.jsonl:1: not a line of JSON"):
        list(read_json_lines(tmp_path / "text.jsonl"))
