"""Original Llama weights become a checkpoint: model-parallel files put together, another model's refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig

from checkpointing.errors import CheckpointError
from tests.support.weights import drawn, equal, original, weights_of
from trainer.convert import import_weights
from trainer.models.llama3.args import FLAVORS
from trainer.models.registry import get

EXCHANGE = get("llama3").exchange


def params(args, **changes):
    return {
        "dim": args.dim,
        "n_layers": args.layers,
        "n_heads": args.heads,
        "n_kv_heads": args.kv_heads,
        "vocab_size": args.vocab_size,
        "multiple_of": 256,
        "norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        **changes,
    }


@pytest.mark.parametrize(("parts", "columns"), [(1, False), (2, False), (2, True)])
def test_original_weights_are_put_together(tmp_path, flavors, parts, columns):
    model = drawn(flavors["tiny"])
    folder = original(tmp_path / "meta", model, parts=parts, params=params(flavors["tiny"]), columns=columns)
    import_weights("original", folder, tmp_path / "seed", model="llama3", flavor="tiny")
    expected = {name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()}
    assert equal(weights_of(tmp_path / "seed"), expected)


def test_original_weights_that_do_not_fit_are_refused(tmp_path, flavors):
    model = drawn(flavors["tiny"])
    good = original(tmp_path / "meta", model, parts=2, params=params(flavors["tiny"]))

    def refusal(change, flavor="tiny"):
        folder = tmp_path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        change(folder)
        with pytest.raises(CheckpointError) as caught:
            import_weights("original", folder, tmp_path / "seed", model="llama3", flavor=flavor)
        return caught.value.reason

    def say(**changes):
        return lambda folder: (folder / "params.json").write_text(json.dumps(params(flavors["tiny"], **changes)))

    assert "rope_theta is 10000.0, the flavor has 500000.0" in refusal(say(rope_theta=10_000.0))
    assert "use_scaled_rope is True, the flavor has False" in refusal(say(use_scaled_rope=True))
    assert "params.json cannot be read" in refusal(lambda folder: (folder / "params.json").unlink())
    assert "is [300, 32], the model has [600, 32]" in refusal(say(vocab_size=600))
    assert "wq.weight is [16, 32], the model has [32, 32]" in refusal(
        lambda folder: (folder / "consolidated.01.pth").unlink()
    )
    pickled = {"tok_embeddings.weight": print}
    assert "cannot be read" in refusal(lambda folder: torch.save(pickled, folder / "consolidated.00.pth"))


def test_the_flavors_are_the_published_descriptions():
    """The fields of the params.json that Meta published beside 3.1 8B and 3.2 1B."""
    published = {
        "8B": {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "norm_eps": 1e-05},
        "1B": {"dim": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "norm_eps": 1e-05},
    }
    for flavor, found in published.items():
        found |= {"ffn_dim_multiplier": 1.3, "multiple_of": 1024, "rope_theta": 500000.0, "use_scaled_rope": True}
        assert EXCHANGE.original_misfits(FLAVORS[flavor], found) == []
    theirs = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, rms_norm_eps=1e-5,
        rope_parameters={
            "rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    assert EXCHANGE.hf_misfits(FLAVORS["8B"], theirs.to_dict()) == []
    older = {**theirs.to_dict(), "rope_theta": 500000.0, "rope_scaling": theirs.rope_parameters}
    del older["rope_parameters"], older["rope_scaling"]["rope_theta"]
    assert EXCHANGE.hf_misfits(FLAVORS["8B"], older) == []
    llama_3_0 = {**older, "rope_scaling": None}
    assert any("rope_type" in problem for problem in EXCHANGE.hf_misfits(FLAVORS["8B"], llama_3_0))
