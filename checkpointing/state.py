"""What survives a death? The closed list of state: named tensors and the clocks.

Disk, peers and digests all read this one list, so nothing can be saved that is not healed, or healed and not compared.
Tensors are named ``model.<fqn>`` and ``optim.<fqn>.<exp_avg|exp_avg_sq|step>`` in a fixed order; everything else that
lives on is a number in ``Clocks``. The trainer builds the list on its own thread at a commit boundary; nothing here
communicates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Adam, Optimizer

from configs.words import Lineage

Tensors = dict[str, torch.Tensor]
"""The closed list: name -> parameter, buffer or optimizer tensor (plain or DTensor), in a fixed order."""

MODEL = "model."
OPTIMIZER = "optim."
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Parts of a parameter's name that compiling and activation checkpointing add; they never reach a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocks:
    """Every number that survives. One owner (the trainer's clock) makes it; files and peers carry it as JSON."""

    step: int
    quorum_id: int
    """Of the commit that made this state: with ``step`` its lineage."""
    cursor: int
    """Samples of the global stream that are used up."""
    tokens: int
    """Valid tokens of all committed steps."""
    seed: int
    config_digest: str
    skips: int = 0
    """Skipped steps in a row, up to this one."""

    @property
    def lineage(self) -> Lineage:
        """The name of this state."""
        return Lineage(self.step, self.quorum_id)

    def to_json(self) -> dict[str, int | str]:
        """As a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Clocks:
        """Inverse of ``to_json``. Raises ValueError naming the key that is missing, unknown or of another type."""
        fields = {f.name: str if f.name == "config_digest" else int for f in dataclasses.fields(cls)}
        if wrong := sorted(set(found) ^ set(fields)):
            raise ValueError(f"clocks: missing or unknown keys {', '.join(wrong)}")
        for name, kind in fields.items():
            if type(found[name]) is not kind:
                raise ValueError(f"clocks: {name} must be {kind.__name__}, found {found[name]!r}")
        return cls(**found)


@dataclasses.dataclass(frozen=True)
class Shard:
    """Where one rank's part of a tensor lies in the whole tensor."""

    dtype: str
    """As ``float32``."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """This rank holds nothing of the tensor."""
        return 0 in self.size


def describe(tensor: torch.Tensor) -> Shard:
    """The part of ``tensor`` that this rank holds: all of it for a plain tensor, its shard for a DTensor."""
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not isinstance(tensor, DTensor):
        return Shard(dtype, shape, (0,) * len(shape), shape)
    size, offset = compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements)
    return Shard(dtype, shape, tuple(offset) or (0,) * len(shape), tuple(size))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's memory of ``tensor``, without a copy and without autograd. Training thread only for DTensors."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():  # then to_local is the shard itself, without a node of the graph
            return tensor.to_local().detach()
    return tensor.detach()


def closed_list(models: Iterable[nn.Module], optimizers: Iterable[Optimizer] = ()) -> Tensors:
    """Every tensor that survives: parameters and persistent buffers, then optimizer state, each once.

    A tied parameter is listed under its first name. Take it at a commit boundary on the training thread: FSDP2 swaps
    parameters during forward and backward. Optimizer state must exist (``ensure_optimizer_state``).
    Raises ValueError for two tensors of one name and for a parameter without optimizer state.
    """
    tensors: Tensors = {}
    names: dict[int, str] = {}
    for model in models:
        for raw, tensor in model.state_dict(keep_vars=True).items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{raw} is no tensor: it cannot survive")
            if id(tensor) in names:
                continue
            name = plain_name(raw)
            if MODEL + name in tensors:
                raise ValueError(f"two tensors are named {name}")
            names[id(tensor)] = name
            tensors[MODEL + name] = tensor
    for optimizer in optimizers:
        tensors.update(_optimizer_tensors(optimizer, names))
    return tensors


def plain_name(raw: str) -> str:
    """A parameter's name without what compiling and activation checkpointing put into it."""
    for wrapper in _WRAPPERS:
        raw = raw.replace(wrapper, "")
    return raw


def ensure_optimizer_state(optimizer: Optimizer) -> None:
    """Create Adam's or AdamW's state for every trained parameter, at step 0, without stepping.

    Equal to what torch makes lazily at the first step, so a group can be restored or healed before it. State that
    exists is left alone. Raises ValueError for another optimizer.
    """
    if not isinstance(optimizer, Adam):
        raise ValueError(f"optimizer state of {type(optimizer).__name__} is not known; Adam and AdamW are")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state[parameter]:
                optimizer.state[parameter].update(_adam_state(parameter, group))


def _adam_state(parameter: torch.Tensor, group: Mapping[str, Any]) -> Tensors:
    # Adam keeps step on the device only for kernels that read it there; under a float64 default it is float64.
    wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
    device = parameter.device if group["capturable"] or group["fused"] else "cpu"
    moments = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])
    state = {"step": torch.zeros((), dtype=torch.float64 if wide else torch.float32, device=device)}
    with torch.no_grad():
        return state | {m: torch.zeros_like(parameter, memory_format=torch.preserve_format) for m in moments}


def _optimizer_tensors(optimizer: Optimizer, names: Mapping[int, str]) -> Tensors:
    found: Tensors = {}
    parameters: Sequence[torch.Tensor] = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
    for parameter in parameters:
        if id(parameter) not in names:
            raise ValueError("the optimizer holds a parameter that no model lists")
        name = names[id(parameter)]
        state = optimizer.state.get(parameter, {})
        if not state:
            raise ValueError(f"{name} has no optimizer state yet")
        found.update({f"{OPTIMIZER}{name}.{key}": value for key, value in sorted(state.items())})
    return found
