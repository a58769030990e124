"""How do Llama 3's weights read in Hugging Face's names and layout, and back?

Values are moved, never computed with, so both ways are exact to the bit. Two things differ: the names, and the rotary
layout. Here a pair is two neighbours of a head (Meta's layout), there it is a number of the head's first half with its
partner in the second, so rows of the query and key projections are permuted. Called by import, export and tests.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from checkpointing.weights import Weight, WeightMap
from trainer.models.llama3.args import Llama3Args, parameter_shapes

_BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}


_TABLES = ("rotary_emb.inv_freq",)
"""Old exports carry the rotary frequencies too; they follow from the config."""


def names(args: Llama3Args) -> dict[str, str]:
    """Every parameter of the model with its name there, in the model's order. A tied output has none of its own."""
    pairs = {"tok_embeddings.weight": "model.embed_tokens.weight"}
    for layer in range(args.layers):
        for ours, theirs in _BLOCK_NAMES.items():
            pairs[f"layers.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"
    pairs["norm.weight"] = "model.norm.weight"
    if not args.tied:
        pairs["output.weight"] = "lm_head.weight"
    return pairs


def weight_map(args: Llama3Args) -> WeightMap:
    """The pairing of every parameter, for reading and writing tensor by tensor."""
    shapes = parameter_shapes(args)
    weights = []
    for ours, theirs in names(args).items():
        rotated = _is_rotated(ours)
        weights.append(
            Weight(
                name=ours,
                theirs=theirs,
                shape=shapes[ours],
                block=args.head_dim if rotated else 1,
                to_theirs=functools.partial(to_hf_layout, ours, args=args),
                to_ours=functools.partial(from_hf_layout, ours, args=args),
            )
        )
    repeats = {"lm_head.weight": "model.embed_tokens.weight"} if args.tied else {}
    return WeightMap(weights=tuple(weights), repeats=repeats, ignored=_TABLES)


def to_hf_layout(name: str, tensor: Tensor, args: Llama3Args) -> Tensor:
    """The tensor of our parameter ``name``, or whole heads of it, as Hugging Face lays it out (a copy for queries and
    keys, else itself)."""
    if not _is_rotated(name):
        return tensor
    return tensor.reshape(-1, args.head_dim // 2, 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


def from_hf_layout(name: str, tensor: Tensor, args: Llama3Args) -> Tensor:
    """Inverse of ``to_hf_layout``; ``name`` is ours."""
    if not _is_rotated(name):
        return tensor
    return tensor.reshape(-1, 2, args.head_dim // 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


def to_hf(state: Mapping[str, Tensor], args: Llama3Args) -> dict[str, Tensor]:
    """A whole state (whole tensors, our names) in Hugging Face's names and layout.

    Raises ValueError that lists names missing or unknown.
    """
    pairs = names(args)
    _check(expected=pairs, found=state)
    return {theirs: to_hf_layout(ours, state[ours], args) for ours, theirs in pairs.items()}


def from_hf(state: Mapping[str, Tensor], args: Llama3Args) -> dict[str, Tensor]:
    """Inverse of ``to_hf``. Of a tied model a repeated ``lm_head.weight`` is left out.

    Raises ValueError that lists names missing or unknown.
    """
    pairs = names(args)
    found = {name: tensor for name, tensor in state.items() if not (args.tied and name == "lm_head.weight")}
    _check(expected=pairs.values(), found=found)
    return {ours: from_hf_layout(ours, found[theirs], args) for ours, theirs in pairs.items()}


def config(args: Llama3Args, *, seq_len: int) -> dict[str, Any]:
    """``config.json`` of the model for ``transformers``; ``seq_len`` is the longest context it is meant for."""
    rope: dict[str, Any] = {"rope_theta": args.rope_theta, "rope_type": "default"}
    if args.rope_scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": args.rope_scaling.factor,
            "low_freq_factor": args.rope_scaling.low_freq_factor,
            "high_freq_factor": args.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": args.rope_scaling.original_seq_len,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.dim,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "head_dim": args.head_dim,
        "intermediate_size": args.ffn_dim,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
        "rope_parameters": rope,
        "rope_scaling": None if args.rope_scaling is None else {k: v for k, v in rope.items() if k != "rope_theta"},
        "max_position_embeddings": seq_len,
        "tie_word_embeddings": args.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def _is_rotated(name: str) -> bool:
    """Whether the parameter projects to heads that are rotated."""
    return name.endswith(("attention.wq.weight", "attention.wk.weight"))


def _check(*, expected: Any, found: Mapping[str, Tensor]) -> None:
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        raise ValueError(f"these weights do not fit the model; missing: {missing}; unknown: {unknown}")
