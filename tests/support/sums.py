"""A small model with every kind of parameter, and a channel whose sums are made in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from replica_groups.channel import Channel
from replica_groups.reduce import GradientReducer, Precision, local


class Kinds(nn.Module):
    """Parameters that are tied, frozen, unused, and used; attention to none of them may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.frozen = nn.Linear(6, 6)
        self.unused = nn.Linear(3, 5)
        self.layer = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight  # tied
        self.frozen.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.frozen(self.embedding(tokens))
        return self.head(self.norm(h + torch.tanh(self.layer(h))))


def kinds() -> Kinds:
    """Always the same weights."""
    torch.manual_seed(5)
    return Kinds()


def microbatch(number: int, *, rows: int = 2, seq: int = 4) -> torch.Tensor:
    """Tokens of microbatch ``number``: int64 [rows, seq]."""
    return torch.randint(11, (rows, seq), generator=torch.Generator().manual_seed(number))


class Posted(Channel):
    """A channel to participants of this process: remembers what is posted; ``add_up`` makes the sums."""

    def __init__(self) -> None:
        super().__init__(process_group=None, quorum_id=1, size=1)
        self.buffers: list[torch.Tensor] = []

    def post(self, buffer: torch.Tensor) -> None:
        self.buffers.append(buffer)

    @property
    def sizes(self) -> list[int]:
        return [buffer.numel() for buffer in self.buffers]


def add_up(channels: Sequence[Posted]) -> None:
    """Sum what was posted, in place, buffer i with buffer i, as a collective of all participants does."""
    assert len({tuple(channel.sizes) for channel in channels}) == 1, "participants posted different buffers"
    for buffers in zip(*(channel.buffers for channel in channels), strict=True):
        total = torch.stack(buffers).sum(0)
        for buffer in buffers:
            buffer.copy_(total)


class Participant:
    """One group's model and reducer."""

    def __init__(self, model: nn.Module, *, how: Precision, bucket_bytes: int = 200) -> None:
        self.model = model
        self.reducer = GradientReducer(model, how=how, bucket_bytes=bucket_bytes, failpoint=lambda *_: None)
        self.channel = Posted()

    def compute(self, share: Sequence[int]) -> None:
        """Forward and backward of a share; everything is posted afterwards."""
        self.channel = Posted()
        self.reducer.begin(self.channel)
        for index, number in enumerate(share):
            self.reducer.expect(last=index == len(share) - 1)
            loss_of(self.model, number).backward()
        self.reducer.post_rest()

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: local(p.grad).clone() for name, p in self.model.named_parameters() if p.grad is not None}


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    """The loss of one microbatch, divided by a constant as the plan does."""
    tokens = microbatch(number)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum") / 48


def plain_gradients(model: nn.Module, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
    """What autograd alone accumulates; zeros where nothing was used."""
    for number in numbers:
        loss_of(model, number).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
