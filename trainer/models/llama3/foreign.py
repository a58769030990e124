"""Is a folder of foreign weights this shape of Llama 3, and how do Meta's and Hugging Face's descriptions read?

Shapes of tensors do not tell how many heads they hold or how positions are rotated, and a wrong guess trains on without
a word; so every field of ``config.json`` and ``params.json`` that changes the function is compared. Defaults of absent
fields are those of the readers they were written for: ``transformers``' LlamaConfig, and ``ModelArgs`` of Meta's
reference code (github.com/meta-llama/llama-models; Llama 2's for the rotary base). ``params.json`` says whether the
rotary embedding is scaled, not by how much: that is the flavor's word alone.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from checkpointing.weights import Weight, WeightMap
from trainer.models.exchange import Exchange, Shapes
from trainer.models.llama3 import hf
from trainer.models.llama3.args import Llama3Args, parameter_shapes

_ROPE_TABLES = ("rope_parameters", "rope_scaling")
_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class Llama3Exchange(Exchange[Llama3Args]):
    """Llama 3's weights as others write them."""

    def fitted(self, args: Llama3Args, *, vocab_size: int) -> Llama3Args:
        return args.with_vocab(vocab_size)

    def vocab_size(self, shapes: Shapes) -> int:
        return shapes["tok_embeddings.weight"][0]

    def context(self, args: Llama3Args) -> int:
        """8,192 tokens of Llama 3, 131,072 of those with a stretched embedding (3.1, 3.2)."""
        return 8192 if args.rope_scaling is None else 131_072

    def hf_map(self, args: Llama3Args) -> WeightMap:
        return hf.weight_map(args)

    def hf_config(self, args: Llama3Args, *, seq_len: int) -> dict[str, Any]:
        return hf.config(args, seq_len=seq_len)

    def hf_misfits(self, args: Llama3Args, config: Mapping[str, Any]) -> list[str]:
        if odd := [name for name in _ROPE_TABLES if not isinstance(config.get(name) or {}, Mapping)]:
            return [f"{name} is {reprlib.repr(config[name])}, expected a table" for name in odd]
        heads = config.get("num_attention_heads")
        found = {
            "model_type": config.get("model_type"),
            "hidden_size": config.get("hidden_size"),
            "num_hidden_layers": config.get("num_hidden_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or args.head_dim,
            "intermediate_size": config.get("intermediate_size"),
            "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
            "tie_word_embeddings": config.get("tie_word_embeddings", False),
            "hidden_act": config.get("hidden_act", "silu"),
            "attention_bias": config.get("attention_bias", False),
            "mlp_bias": config.get("mlp_bias", False),
            **_rope_of_hf(config),
        }
        ours = hf.config(args, seq_len=1)
        expected = {name: ours[name] for name in found.keys() & ours.keys()} | _rope_of_hf(ours)
        return _differences(found, expected)

    def original_map(self, args: Llama3Args) -> WeightMap:
        """Names and rotary layout are ours; a tied model's file may hold its output once more."""
        weights = tuple(Weight(name=name, theirs=name, shape=shape) for name, shape in parameter_shapes(args).items())
        repeats = {"output.weight": "tok_embeddings.weight"} if args.tied else {}
        return WeightMap(weights=weights, repeats=repeats, ignored=("rope.freqs",))

    def original_misfits(self, args: Llama3Args, params: Mapping[str, Any]) -> list[str]:
        heads = params.get("n_heads", 32)
        found = {
            "dim": params.get("dim", 4096),
            "n_layers": params.get("n_layers", 32),
            "n_heads": heads,
            "n_kv_heads": params.get("n_kv_heads") or heads,
            "norm_eps": params.get("norm_eps", 1e-5),
            "rope_theta": params.get("rope_theta", 10_000.0),
            "use_scaled_rope": params.get("use_scaled_rope", False),
        }
        expected = {
            "dim": args.dim,
            "n_layers": args.layers,
            "n_heads": args.heads,
            "n_kv_heads": args.kv_heads,
            "norm_eps": args.norm_eps,
            "rope_theta": args.rope_theta,
            "use_scaled_rope": args.rope_scaling is not None,
        }
        return _differences(found, expected)


def _rope_of_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary fields, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    fields: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = fields.get("rope_type", fields.get("type", "default"))
    found = {
        "rope_theta": fields.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "rope_type": kind,
    }
    if kind != "default":
        found |= {f"rope {name}": fields.get(name) for name in _ROPE}
    return found


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Fields that are not equal; numbers are compared as numbers."""
    names = [*found, *(name for name in expected if name not in found)]
    return [
        f"{name} is {reprlib.repr(found.get(name))}, the flavor has {expected.get(name)!r}"
        for name in names
        if found.get(name) != expected.get(name)
    ]
