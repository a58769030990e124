"""Which shapes of Llama 3 are there, how many parameters have they, and what does a token cost?

Shapes of 8B, 70B and 405B (3.1) and 1B (3.2) are those that Meta published ("The Llama 3 Herd of Models",
arXiv:2407.21783, table 3, and the params.json beside the weights). ``tiny``, ``debug`` and ``bench`` are ours. Pure
arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of the rotary embedding to contexts longer than it was pretrained on."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_seq_len: int = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Args:
    """A shape. Raises ValueError when heads do not fit."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab_size: int = 128_256
    norm_eps: float = 1e-5
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = False
    """The output projection is the token embedding."""

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")

    @property
    def head_dim(self) -> int:
        """Numbers in one head."""
        return self.dim // self.heads

    def with_vocab(self, vocab_size: int | None) -> Llama3Args:
        """The same shape with another vocabulary; None keeps it."""
        return self if vocab_size is None else dataclasses.replace(self, vocab_size=vocab_size)


FLAVORS: Mapping[str, Llama3Args] = MappingProxyType(
    {
        "tiny": Llama3Args(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=64, vocab_size=2048),
        "debug": Llama3Args(dim=128, layers=4, heads=4, kv_heads=2, ffn_dim=384, vocab_size=2048),
        "bench": Llama3Args(dim=256, layers=4, heads=4, kv_heads=4, ffn_dim=768, vocab_size=2048),
        "1B": Llama3Args(
            dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, tied=True, rope_scaling=RopeScaling(factor=32.0)
        ),
        "8B": Llama3Args(dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14336, rope_scaling=RopeScaling()),
        "70B": Llama3Args(dim=8192, layers=80, heads=64, kv_heads=8, ffn_dim=28672, rope_scaling=RopeScaling()),
        "405B": Llama3Args(dim=16384, layers=126, heads=128, kv_heads=8, ffn_dim=53248, rope_scaling=RopeScaling()),
    }
)


def parameter_shapes(args: Llama3Args) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by name, in the model's order. A tied output has none of its own."""
    rows, narrow, wide = args.heads * args.head_dim, args.kv_heads * args.head_dim, args.ffn_dim
    block: dict[str, tuple[int, ...]] = {
        "attention_norm": (args.dim,),
        "attention.wq": (rows, args.dim),
        "attention.wk": (narrow, args.dim),
        "attention.wv": (narrow, args.dim),
        "attention.wo": (args.dim, rows),
        "ffn_norm": (args.dim,),
        "feed_forward.w1": (wide, args.dim),
        "feed_forward.w2": (args.dim, wide),
        "feed_forward.w3": (wide, args.dim),
    }
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (args.vocab_size, args.dim)}
    for layer in range(args.layers):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    shapes["norm.weight"] = (args.dim,)
    if not args.tied:
        shapes["output.weight"] = (args.vocab_size, args.dim)
    return shapes


def num_params(args: Llama3Args) -> int:
    """Trainable numbers; a tied embedding counts once."""
    attention = 2 * args.dim * args.head_dim * (args.heads + args.kv_heads)
    block = attention + 3 * args.dim * args.ffn_dim + 2 * args.dim
    embeddings = (1 if args.tied else 2) * args.vocab_size * args.dim
    return args.layers * block + embeddings + args.dim


def flops_per_token(args: Llama3Args, *, seq_len: int) -> int:
    """Forward and backward of one token: 6 N + 12 layers * dim * seq_len.

    After PaLM (arXiv:2204.02311, appendix B), as torchtitan counts: N leaves the embedding lookup out but keeps the
    output projection, tied or not; attention counts as if it were not causal; recomputation does not count. So figures
    of model FLOPs utilisation can be compared with published ones.
    """
    lookup = 0 if args.tied else args.vocab_size * args.dim
    return 6 * (num_params(args) - lookup) + 12 * args.layers * args.dim * seq_len
