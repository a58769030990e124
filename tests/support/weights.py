"""Checkpoints of small models, and the folders of others with the same weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from checkpointing.fellows import Fellows
from checkpointing.opened import OpenCheckpoint
from checkpointing.places import Place
from checkpointing.state import closed_list, ensure_optimizer_state
from checkpointing.storage import write_checkpoint
from tests.support.small_llama import built
from tests.support.states import clocks
from trainer.models.llama3.args import FLAVORS, Llama3Args, RopeScaling
from trainer.models.llama3.model import Llama3

TINY = FLAVORS["tiny"]
"""The shape of the folders here; its vocabulary is cut to keep them small."""
VOCABULARY = 300
SCALED = RopeScaling(factor=8.0, original_seq_len=64)


def shaped(**changes: object) -> Llama3Args:
    """The tiny flavor with a small vocabulary and what else is asked for."""
    return dataclasses.replace(TINY, vocab_size=VOCABULARY, **changes)


def drawn(args: Llama3Args, *, seed: int = 5) -> Llama3:
    """A model with norms that do something and logits of order 1."""
    model = built(args, seq_len=64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.0 if parameter.ndim == 1 else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def saved(
    folder: Path, model: Llama3, *, step: int = 7, secret: bytes | None = None, place: Place | None = None
) -> Path:
    """A checkpoint of the model and its optimizer, as a run publishes it: in ``folder``, or in ``place``."""
    optimizer = torch.optim.AdamW(model.parameters())
    ensure_optimizer_state(optimizer)
    unfinished, _, _ = write_checkpoint(
        folder,
        fellows=Fellows(None),
        tensors={name: tensor.detach() for name, tensor in closed_list([model], [optimizer]).items()},
        clocks=clocks(step),
        writer="g0.1",
        secret=secret,
        failpoint=lambda *_, **__: None,
    )
    assert unfinished is not None
    place.publish(unfinished) if place else unfinished.publish()
    return folder / clocks(step).lineage.folder


def original(folder: Path, model: Llama3, *, parts: int, params: dict[str, object], columns: bool = False) -> Path:
    """The model as Meta's model-parallel code saves it, in bf16; ``columns``: the embedding is cut as Llama 2's."""
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(params))
    states: list[dict[str, torch.Tensor]] = [{} for _ in range(parts)]
    for name, tensor in model.state_dict().items():
        kind = name.split(".")[-2]
        if kind in ("attention_norm", "ffn_norm", "norm"):
            pieces = [tensor] * parts
        elif kind in ("wo", "w2") or (kind == "tok_embeddings" and columns):
            pieces = list(tensor.chunk(parts, dim=1))
        else:
            pieces = list(tensor.chunk(parts, dim=0))
        for state, piece in zip(states, pieces, strict=True):
            state[name] = piece.bfloat16().clone()
    for number, state in enumerate(states):
        state["rope.freqs"] = torch.zeros(4)
        torch.save(state, folder / f"consolidated.{number:02d}.pth")
    return folder


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """The same names, dtypes and bits."""
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    """The parameters of a checkpoint, read as an export reads them."""
    opened = OpenCheckpoint(path, secret=None)
    return {name: opened.read(name) for name in opened.weights}
