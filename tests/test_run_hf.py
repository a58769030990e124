"""Whole runs: the end of one leaves a Hugging Face folder, another starts from it."""

from __future__ import annotations

import json

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpointing.opened import OpenCheckpoint
from configs.dump import to_toml
from configs.run_folder import write_atomically
from configs.words import Exit
from trainer.convert import to_hf
from trainer.models.llama3 import hf
from trainer.models.registry import get


def test_a_run_leaves_a_folder_and_another_starts_from_its_weights(rig, tmp_path):
    first = rig.run("hf-first", steps=4, checkpoint__last_save_in_hf=True)
    assert first.code == Exit.DONE, first.reason
    (export,) = [e for group in ("g0", "g1") for e in first.events(group, "export")]
    (folder,) = first.folder.exports.iterdir()
    assert export["folder"] == str(folder)
    assert (export["step"], export["kind"]) == (4, "hf")
    assert f"exported to {folder}" in first.said
    step = first.folder.root / "checkpoints" / folder.name
    saved = OpenCheckpoint(step, secret=None)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    args = get("llama3").flavor("tiny").with_vocab(theirs.config.vocab_size)
    ours = hf.from_hf(theirs.state_dict(), args)
    assert ours.keys() == saved.weights.keys()
    assert all(torch.equal(ours[name], saved.read(name)) for name in ours)

    # The command comes to the same files, from what lies in the run folder.
    write_atomically(first.folder.config, to_toml(rig.config("hf-first", steps=4)))
    to_hf(step, tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "file 3 line 7: 56 sheep\nund <eos> 日本"
    assert tokenizer(text)["input_ids"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    config = json.loads((folder / "config.json").read_text())
    assert tokenizer.bos_token_id == config["bos_token_id"] is not None
    assert tokenizer.eos_token_id == config["eos_token_id"] is not None
    assert theirs.generation_config.eos_token_id == tokenizer.eos_token_id

    # The learning rate is 0 here: the weights after a step are those that the run began with.
    start = {"checkpoint__initial_load_in_hf": True, "checkpoint__initial_load_path": folder}
    second = rig.run(
        "hf-second", steps=1, optimizer__lr=0.0, checkpoint__last_save_model_only=True,
        checkpoint__export_dtype="bfloat16", **start,
    )  # fmt: skip
    assert second.code == Exit.DONE, second.reason
    (began,) = {e["weights"] for group in ("g0", "g1") for e in second.events(group, "restore")}
    assert began == str(folder)
    assert f"starts from {folder}" in second.said
    (alone,) = second.folder.exports.iterdir()
    weights = OpenCheckpoint(alone, secret=None)
    assert all(name.startswith("model.") for name in weights.manifest.keys)
    assert all(torch.equal(weights.read(name), ours[name].bfloat16()) for name in ours)
    assert len(second.series("digest")) == 1  # the groups agree
    losses = [first.series("loss")[step] for step in (1, 4)]
    assert second.series("loss")[1] < losses[0]

    # Such a run goes on from its own checkpoint: the folder may be gone.
    gone = folder.rename(folder.with_name("renamed"))
    again = rig.run("hf-second", steps=2, optimizer__lr=0.0, checkpoint__last_save_model_only=True, **start)
    assert again.code == Exit.DONE, again.reason
    assert again.ledger.steps == 2
    assert len(list(again.folder.exports.iterdir())) == 2
    start["checkpoint__initial_load_path"] = gone

    wrong = rig.run("hf-wrong", groups=1, steps=1, model__flavor="debug", **start)
    assert wrong.code == Exit.CHECKPOINT
    assert "hidden_size is 32, the flavor has 128" in wrong.reason


def test_a_start_from_weights_of_another_tokenizer_ends_with_6_and_says_what_to_set(rig):
    first = rig.run("hf-tokens", groups=1, ranks=1, steps=1, checkpoint__last_save_in_hf=True)
    (folder,) = first.folder.exports.iterdir()
    own = (folder / "tokenizer.json").read_text()
    start = {"checkpoint__initial_load_in_hf": True, "checkpoint__initial_load_path": folder}

    other = json.loads(own)
    other["model"]["merges"] = other["model"]["merges"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(other))
    refused = rig.run("hf-tokens-other", groups=1, ranks=1, steps=1, **start)
    assert refused.code == Exit.CHECKPOINT
    assert f"{folder}/tokenizer.json is not this run's tokenizer" in refused.reason
    assert f"set model.hf_assets_path to '{folder}'" in refused.reason

    (folder / "tokenizer.json").write_text(json.dumps(json.loads(own), indent=1))
    assert rig.run("hf-tokens-same", groups=1, ranks=1, steps=1, **start).code == Exit.DONE

    (folder / "tokenizer.json").unlink()
    without = rig.run("hf-tokens-none", groups=1, ranks=1, steps=1, **start)
    assert without.code == Exit.DONE
    logs = "".join(log.read_text() for log in without.folder.root.glob("logs/g0/*/rank0.log"))
    assert f"{folder} has no tokenizer.json: the tokens are those of this run's own tokenizer" in logs

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": [1]}))
    bad = rig.run("hf-tokens-bad", groups=1, ranks=1, steps=1, **start)
    assert bad.code == Exit.CHECKPOINT
    assert f"{folder}/config.json: max_position_embeddings is [1], expected a whole number" in bad.reason
