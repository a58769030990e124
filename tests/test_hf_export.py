"""Weights leave for, and come from, the folders of others: transformers reads ours, we read theirs, to the bit."""

from __future__ import annotations

import json
import os
import weakref

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from checkpointing import hf_format
from checkpointing.errors import CheckpointError
from checkpointing.hf_format import SafetensorsFolder, split_files
from checkpointing.opened import write_seed
from checkpointing.resume import load
from checkpointing.state import MODEL
from tests.support.small_llama import tokens
from tests.support.states import flip
from tests.support.weights import VOCABULARY, drawn, equal, saved, weights_of
from trainer.convert import import_weights, to_hf
from trainer.models.llama3 import hf


def written(tmp_path, args, flavor, **options):
    """(model, its checkpoint, its exported folder)."""
    model = drawn(args)
    step = saved(tmp_path / "checkpoints", model)
    to_hf(step, tmp_path / "hf", model="llama3", flavor=flavor, **options)
    return model, step, tmp_path / "hf"


def state_of(folder):
    """Every tensor of a model folder, as any reader of safetensors sees it."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


# --- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [5_000_000_000, 20_000], ids=["one file", "sharded"])
@pytest.mark.parametrize("flavor", ["tiny", "tied", "scaled"])
def test_transformers_computes_the_same_logits(tmp_path, flavors, flavor, limit):
    model, _, folder = written(tmp_path, flavors[flavor], flavor, limit=limit)
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(theirs) is LlamaForCausalLM
    text = tokens(seq=60, args=flavors[flavor])
    with torch.no_grad():
        found, expected = theirs(text).logits, model(text)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (folder / "model.safetensors.index.json").exists() == (limit == 20_000)


def test_a_sharded_folder_names_every_tensor_once_and_keeps_to_the_limit(tmp_path, flavors):
    model, _, folder = written(tmp_path, flavors["tiny"], "tiny", limit=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert [f.name for f in files] == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    sizes = []
    for file in files:
        held = load_file(file)
        sizes.append(sum(tensor.nbytes for tensor in held.values()))
        assert sizes[-1] <= 20_000 or len(held) == 1
        assert {name for name, where in index["weight_map"].items() if where == file.name} == held.keys()
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert index["metadata"]["total_size"] == sum(sizes) == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_weights_have_the_rights_that_the_umask_gives_every_file(tmp_path, flavors, umask, mode):
    before = os.umask(umask)
    try:
        _, _, folder = written(tmp_path, flavors["tiny"], "tiny", limit=20_000)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        path.name: mode for path in folder.iterdir()
    }


def test_the_config_is_complete_for_readers_that_know_no_defaults(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["scaled"], "scaled", dtype=torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    assert {name: config[name] for name in expected} == expected
    assert config["rope_scaling"]["rope_type"] == config["rope_parameters"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["original_max_position_embeddings"] == 64
    loaded = LlamaConfig.from_pretrained(folder)
    assert loaded.rope_parameters["factor"] == 8.0
    assert loaded.dtype == torch.bfloat16


def test_an_export_dtype_rounds_once_and_float16_refuses_what_it_cannot_hold(tmp_path, flavors):
    model, step, folder = written(tmp_path, flavors["tiny"], "tiny", dtype=torch.bfloat16)
    expected = {name: tensor.bfloat16() for name, tensor in hf.to_hf(model.state_dict(), flavors["tiny"]).items()}
    assert equal(state_of(folder), expected)
    with torch.no_grad():
        model.norm.weight[3] = 70_000.0
    step = saved(tmp_path / "more", model)
    with pytest.raises(CheckpointError, match=r"norm\.weight does not fit float16"):
        to_hf(step, tmp_path / "half", model="llama3", flavor="tiny", dtype=torch.float16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "hf", "more"]


def test_nothing_is_written_over_and_a_damaged_checkpoint_is_refused(tmp_path, flavors):
    _, step, folder = written(tmp_path, flavors["tiny"], "tiny")
    with pytest.raises(FileExistsError):
        to_hf(step, folder, model="llama3", flavor="tiny")
    flip(step / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged"):
        to_hf(step, tmp_path / "again", model="llama3", flavor="tiny")
    with pytest.raises(CheckpointError, match="say --model and --flavor"):
        to_hf(saved(tmp_path / "more", drawn(flavors["tiny"])), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_files_are_split_in_order():
    sizes = {"a": 4, "b": 4, "c": 3, "d": 20, "e": 1}
    assert split_files(sizes, limit=8) == {
        "model-00001-of-00004.safetensors": ["a", "b"],
        "model-00002-of-00004.safetensors": ["c"],
        "model-00003-of-00004.safetensors": ["d"],
        "model-00004-of-00004.safetensors": ["e"],
    }
    assert split_files(sizes, limit=32) == {"model.safetensors": list(sizes)}


# --- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavor", ["tiny", "tied", "scaled"])
def test_both_round_trips_keep_every_bit(tmp_path, flavors, flavor):
    _, step, folder = written(tmp_path, flavors[flavor], flavor, limit=20_000)
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor=flavor)
    assert equal(weights_of(tmp_path / "seed"), weights_of(step))  # from-hf(to-hf(s)) is s
    to_hf(tmp_path / "seed", tmp_path / "again", limit=20_000)
    files = sorted(path.name for path in folder.iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in files:  # to-hf(from-hf(x)) is x, file by file
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_weights_of_transformers_in_bf16_come_back_as_they_were(tmp_path, flavors):
    torch.manual_seed(0)
    config = LlamaConfig(**hf.config(flavors["tiny"], seq_len=512))
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "theirs", max_shard_size="30KB")
    theirs = state_of(tmp_path / "theirs")
    import_weights("hf", tmp_path / "theirs", tmp_path / "seed", model="llama3", flavor="tiny")
    assert {tensor.dtype for tensor in weights_of(tmp_path / "seed").values()} == {torch.float32}
    to_hf(tmp_path / "seed", tmp_path / "again", dtype=torch.bfloat16)
    assert equal(state_of(tmp_path / "again"), theirs)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["max_position_embeddings"] == 512


def test_an_imported_checkpoint_loads_as_a_runs_own(tmp_path, flavors):
    model, _, folder = written(tmp_path, flavors["tiny"], "tiny")
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    found = {MODEL + name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    clocks = load(tmp_path / "seed", found, group=None, secret=None)
    assert (clocks.step, clocks.cursor) == (0, 0)
    assert equal({name.removeprefix(MODEL): tensor for name, tensor in found.items()}, model.state_dict())


def test_tokenizer_files_travel_with_the_weights(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["tiny"], "tiny")
    texts = {"tokenizer_config.json": '{"bos_token": "<bos>"}', "special_tokens_map.json": "{}"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    tokenizer = '{"version": "1.0", "model": {"type": "BPE", "vocab": {"<bos>": 0, "<eos>": 1}, "merges": []}}'
    (folder / "tokenizer.json").write_text(tokenizer)
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    result = to_hf(tmp_path / "seed", tmp_path / "again")
    assert result["tokenizer"]
    assert (tmp_path / "again" / "tokenizer.json").read_text() == tokenizer
    assert all((tmp_path / "again" / name).read_text() == text for name, text in texts.items())
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)


def test_a_folder_that_does_not_fit_is_refused_with_every_key(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["tiny"], "tiny")

    def refusal(flavor="tiny"):
        with pytest.raises(CheckpointError) as caught:
            import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor=flavor)
        assert not (tmp_path / "seed").exists()
        return caught.value.reason

    tied = refusal("tied")
    assert "tie_word_embeddings is False, the flavor has True" in tied
    scaled = refusal("scaled")
    assert "num_key_value_heads is 2, the flavor has 1" in scaled
    assert "rope_type is 'default', the flavor has 'llama3'" in scaled

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"], weights["model.layers.1.mlp.up_proj.weight"]
    weights |= {"model.layers.2.mlp.up_proj.weight": torch.zeros(3), "extra": torch.zeros(2)}
    weights["lm_head.weight"] = torch.zeros(VOCABULARY + 1, 32)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)  # a table, not a weight
    save_file(weights, folder / "model.safetensors")
    reason = refusal()
    assert reason.endswith(
        "missing: model.layers.1.mlp.up_proj.weight, model.norm.weight; "
        "unknown: extra, model.layers.2.mlp.up_proj.weight; "
        f"lm_head.weight is [{VOCABULARY + 1}, 32], the model has [{VOCABULARY}, 32]"
    )
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    assert "model.safetensors cannot be read" in refusal()
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal()
    (folder / "config.json").unlink()
    assert "config.json cannot be read" in refusal()


def test_an_index_that_names_what_is_not_there_is_refused(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["tiny"], "tiny", limit=20_000)
    index = json.loads((folder / hf_format.INDEX).read_text())
    file = index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.ghost.weight"] = file
    (folder / hf_format.INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"no file holds: model\.ghost\.weight"):
        SafetensorsFolder(folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        SafetensorsFolder(folder)
    index["weight_map"]["model.ghost.weight"] = "../elsewhere.safetensors"
    (folder / hf_format.INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside the folder"):
        SafetensorsFolder(folder)


def test_a_tied_model_takes_a_repeated_output_only_if_it_is_the_embedding(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["tied"], "tied")
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in weights
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors")
    import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tied")
    weights["lm_head.weight"][5, 5] += 1
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        import_weights("hf", folder, tmp_path / "more", model="llama3", flavor="tied")


def test_weights_that_are_not_floats_are_refused(tmp_path, flavors):
    _, _, folder = written(tmp_path, flavors["tiny"], "tiny")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is torch\.float8_e4m3fn"):
        import_weights("hf", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "hf"]


# --- one tensor at a time --------------------------------------------------------------------------------------------


class Held:
    """Hands out tensors and knows how many numbers of them are alive at most, whoever shares their memory."""

    def __init__(self):
        self.alive: list[weakref.ref] = []
        self.most = 0

    def tensor(self):
        memory = np.zeros(1000, dtype=np.float32)
        self.alive = [*(ref for ref in self.alive if ref() is not None), weakref.ref(memory)]
        self.most = max(self.most, 1000 * len(self.alive))
        return torch.from_numpy(memory)


def test_an_export_holds_the_tensors_of_one_file(tmp_path):
    held, sizes = Held(), {f"t{i:02d}": 4000 for i in range(20)}
    tensors = ((name, held.tensor()) for name in sizes)
    hf_format.write_safetensors(tmp_path, tensors, sizes=sizes, limit=12_000)
    assert len(list(tmp_path.glob("*.safetensors"))) == 7
    assert held.most <= 4000  # three of a file, and the one that was just read


def test_an_import_holds_the_tensors_of_one_moment(tmp_path):
    held = Held()
    shapes = {f"t{i:02d}": (1000,) for i in range(20)}
    write_seed(tmp_path / "seed", shapes, lambda _: held.tensor(), writer="test", secret=None)
    assert held.most <= 3000


def test_an_import_that_fails_half_way_leaves_nothing(tmp_path):
    def read(name):
        if name == "t07":
            raise CheckpointError("the disk is gone")
        return torch.zeros(10)

    shapes = {f"t{i:02d}": (10,) for i in range(20)}
    with pytest.raises(CheckpointError, match="the disk is gone"):
        write_seed(tmp_path / "seed", shapes, read, writer="test", secret=None)
    assert list(tmp_path.iterdir()) == []
