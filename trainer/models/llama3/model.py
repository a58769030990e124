"""Llama 3: a decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

Parameter names and the rotary layout (neighbouring numbers of a head form a pair) are those of Meta's weights. A tied
model has no second parameter for its output projection, so nothing can come untied when the model is materialised,
sharded or saved. Called through the package's ``SPEC``; knows nothing of sharding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.models.init import Constant, Normal, init_parameters
from trainer.models.llama3.args import Llama3Args, RopeScaling


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dim (arXiv:1910.07467)."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if (
            x.device.type != "cpu"
            or x.dtype != torch.float32
            or torch.compiler.is_compiling()
            or isinstance(x, DTensor)
        ):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # On the CPU F.rms_norm is a chain of elementwise kernels; with a dot product the backward takes half the time.
        mean_square = torch.linalg.vecdot(x, x) / x.shape[-1]
        return x * torch.rsqrt(mean_square + self.eps).unsqueeze(-1) * self.weight


class Rotary(nn.Module):
    """Rotates each pair of a head by an angle that grows with the position (arXiv:2104.09864).

    One instance is shared by all blocks. The table stays out of the forward arguments, where FSDP's mixed precision
    would round it, and out of the state dict.
    """

    table: Tensor

    def __init__(self, *, head_dim: int, seq_len: int, theta: float, scaling: RopeScaling | None) -> None:
        super().__init__()
        self.head_dim, self.seq_len, self.theta, self.scaling = head_dim, seq_len, theta, scaling
        self.register_buffer("table", self._make_table(device=None), persistent=False)

    def reset(self) -> None:
        """Write the table again, after ``to_empty``. Computed on the CPU, so the same on every device."""
        self.table.copy_(self._make_table(device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, seq, heads, head_dim], positions counted from 0; the same shape and dtype, computed in fp32."""
        table = self.table[: x.shape[1]].unsqueeze(1)
        pairs = x.float().unflatten(-1, (-1, 2))
        if torch.compiler.is_compiling():
            # The compiler fuses real arithmetic, and has no complex numbers.
            (a, b), (cos, sin) = pairs.unbind(-1), table.unbind(-1)
            rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:
            # One kernel each way, no copies: five times faster than real arithmetic in eager mode.
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(table))
        return rotated.flatten(-2).type_as(x)

    def _make_table(self, *, device: str | None) -> Tensor:
        """(cos, sin) of each angle: fp32 [seq, head_dim / 2, 2]."""
        frequencies = rotary_frequencies(self.head_dim, theta=self.theta, scaling=self.scaling, device=device)
        angles = torch.outer(torch.arange(self.seq_len, device=device, dtype=torch.float32), frequencies)
        return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotary_frequencies(
    head_dim: int, *, theta: float, scaling: RopeScaling | None, device: str | None = None
) -> Tensor:
    """Radians per position of each pair: fp32 [head_dim / 2].

    With ``scaling``, Llama 3.1's rule: waves that fit the old context ``high_freq_factor`` times stay, those that do
    not fit it ``low_freq_factor`` times are stretched by ``factor``, in between both are blended (apply_scaling of
    Meta's reference code). fp32 as there.
    """
    exponents = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


class Attention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245)."""

    def __init__(self, args: Llama3Args, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = args.head_dim
        self.grouped = args.heads != args.kv_heads
        self.rotary = rotary
        self.wq = nn.Linear(args.dim, args.heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.heads * args.head_dim, args.dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, seq, _ = x.shape
        heads = (batch, seq, -1, self.head_dim)  # -1: under tensor parallelism a rank has some of the heads
        q = self.rotary(self.wq(x).view(heads)).transpose(1, 2)
        k = self.rotary(self.wk(x).view(heads)).transpose(1, 2)
        v = self.wv(x).view(heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.grouped)
        out: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, args: Llama3Args) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.ffn_dim, bias=False)
        self.w2 = nn.Linear(args.ffn_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, args: Llama3Args, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = Attention(args, rotary)
        self.ffn_norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.feed_forward = FeedForward(args)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama3(nn.Module):
    """The whole model. Without ``init_weights`` its parameters hold torch's defaults, or nothing on meta."""

    def __init__(self, args: Llama3Args, *, seq_len: int) -> None:
        super().__init__()
        self.args = args
        self.seq_len = seq_len
        rotary = Rotary(head_dim=args.head_dim, seq_len=seq_len, theta=args.rope_theta, scaling=args.rope_scaling)
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        # Keyed by number, so that a part of the model names its parameters as the whole does.
        self.layers = nn.ModuleDict({str(i): Block(args, rotary) for i in range(args.layers)})
        self.norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.output = None if args.tied else nn.Linear(args.dim, args.vocab_size, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [batch, seq, vocab] of int64 tokens [batch, seq]; ``mask`` as in ``ModelSpec.build``.

        Raises ValueError when the sequence is longer than the model was built for.
        """
        if tokens.shape[1] > self.seq_len:
            raise ValueError(f"sequence of {tokens.shape[1]} tokens; the model was built for {self.seq_len}")
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x, mask)
        x = self.norm(x)
        # Tied: the embedding belongs to the root, whose parameters FSDP keeps gathered until the root returns.
        logits: Tensor = F.linear(x, self.tok_embeddings.weight) if self.output is None else self.output(x)
        return logits

    def init_weights(self, *, seed: int) -> None:
        """Fill parameters and the rotary table in place: see ``ModelSpec.init_weights``."""
        init_parameters(self, seed=seed, rule=self.initial)
        for module in self.modules():
            if isinstance(module, Rotary):
                module.reset()

    def initial(self, name: str) -> Normal | Constant:
        """How the parameter called ``name`` starts.

        GPT-2's scheme: 0.02, and projections into the residual narrowed by the root of their number. The output
        projection starts at dim^-0.5, so that logits have unit variance whatever the width.
        """
        if name.endswith("norm.weight"):
            return Constant(1.0)
        if name == "output.weight":
            return Normal(self.args.dim**-0.5)
        if name.endswith(("attention.wo.weight", "feed_forward.w2.weight")):
            return Normal(0.02 / math.sqrt(2 * self.args.layers))
        return Normal(0.02)
