"""A run keeps its tokenizer, and what it keeps is what Hugging Face's tools open."""

from __future__ import annotations

import json

import pytest

from tests.support.data import make_store, write_corpus
from trainer.data.assets import Special, copy_tokenizer, has_tokenizer, keep_tokenizer, same_tokenizer
from trainer.data.errors import DataError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("assets")
    return make_store(write_corpus(root / "corpus"), root / "cache").tokenizer


def test_a_trained_tokenizer_gets_what_it_needs_and_nothing_else_of_its_folder(trained, tmp_path):
    keep_tokenizer(tmp_path / "run" / "tokenizer", trained=trained, assets=None)
    kept = tmp_path / "run" / "tokenizer"
    assert sorted(path.name for path in kept.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert (kept / "tokenizer.json").read_bytes() == trained.read_bytes()
    config = json.loads((kept / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<bos>", "<eos>")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["tokenizer"]


def test_a_published_tokenizer_is_copied_as_it_came(trained, tmp_path):
    assets = tmp_path / "assets"
    assets.mkdir()
    texts = {
        "tokenizer.json": trained.read_text(),
        "tokenizer_config.json": '{"eos_token": {"content": "a"}}',
        "chat_template.jinja": "{{ messages }}",
        "model.safetensors": "not of the tokenizer",
    }
    for name, text in texts.items():
        (assets / name).write_text(text)
    keep_tokenizer(tmp_path / "tokenizer", trained=trained, assets=str(assets))
    found = {path.name: path.read_text() for path in (tmp_path / "tokenizer").iterdir()}
    assert found == {name: text for name, text in texts.items() if name != "model.safetensors"}
    (tmp_path / "out").mkdir()
    special = copy_tokenizer(tmp_path / "tokenizer", tmp_path / "out")
    assert special.bos == 0  # "<bos>", the usual name
    assert special.eos not in (None, 1)  # "a", as its config says


def test_tokenizers_are_compared_by_what_they_make_of_a_text(trained, tmp_path):
    other = tmp_path / "tokenizer.json"
    body = json.loads(trained.read_text())
    assert body["model"]["merges"]
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in body["model"]["merges"]]
    for merges in (pairs, [" ".join(pair) for pair in pairs]):
        body["model"]["merges"] = merges
        body["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        other.write_text(json.dumps(body, indent=4))
        assert same_tokenizer(other, trained)
    body["model"]["merges"] = pairs[:-1]
    other.write_text(json.dumps(body))
    assert not same_tokenizer(other, trained)
    other.write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        same_tokenizer(other, trained)


def test_the_first_copy_stays_and_a_folder_that_cannot_be_written_is_no_error(trained, tmp_path, capsys):
    (tmp_path / "tokenizer").mkdir()
    keep_tokenizer(tmp_path / "tokenizer", trained=trained, assets=None)
    assert not has_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "file").touch()
    keep_tokenizer(tmp_path / "file" / "tokenizer", trained=trained, assets=None)
    assert "could not be kept" in capsys.readouterr().out


def test_a_folder_without_a_tokenizer_has_no_special_tokens_and_a_broken_one_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    assert copy_tokenizer(tmp_path, tmp_path / "out") == Special(None, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is no tokenizer file"):
        copy_tokenizer(tmp_path, tmp_path / "out")
