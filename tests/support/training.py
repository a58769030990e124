"""One rank's parts around a tiny model: real compute, reducer, optimizer and state keeper; the seat is scripted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checkpointing.state import Clocks, closed_list, ensure_optimizer_state, local
from configs.failpoints import parse
from configs.words import Lineage
from replica_groups.channel import Beside
from replica_groups.mesh import build_mesh, shard
from replica_groups.reduce import GradientReducer, precision
from replica_groups.signals import Signals
from replica_groups.vitals import Vitals
from tests.support.stand_ins import SHAPE, WORDS, Disk, Seat, Server, Text
from tests.support.states import Recorder
from trainer.compute import Compute
from trainer.failpoints import Failpoints
from trainer.optimizer import build_optimizer
from trainer.parts import Parts
from trainer.phases import Phases
from trainer.schedule import Schedule
from trainer.sentinel import Sentinel
from trainer.state import StateKeeper
from trainer.transaction import Transaction

SCHEDULE = Schedule(base=3e-2, steps=30, warmup=3, decay_ratio=0.5, decay_type="cosine", min_factor=0.1)


class Dropping(nn.Module):
    """A language model whose forward draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.drop = nn.Dropout(0.2)
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.drop(self.embedding(tokens))))


def dropping() -> Dropping:
    """Always the same weights."""
    torch.manual_seed(3)
    return Dropping()


def no_fetch(*args: Any, **options: Any) -> Any:
    raise AssertionError("nobody asked to heal")


@dataclasses.dataclass(kw_only=True)
class Rig:
    """One rank and what stands around it."""

    parts: Parts
    state: StateKeeper
    transaction: Transaction
    seat: Seat
    text: Text
    disk: Disk
    server: Server
    events: Recorder
    ended: list[Lineage]
    hooks: list[int]
    """One entry for every optimizer step, as a registered hook sees it."""

    def attempt(self, times: int = 1) -> None:
        for _ in range(times):
            self.transaction.attempt()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.events.events if e["event"] == name]


def rig(*failpoints: str, world: int = 1, rank: int = 0, group: str = "g0", good: bool = True, **changes: Any) -> Rig:
    """A rank at step 0 whose state is good. ``changes`` are fields of Parts. Needs a default process group."""
    events, seat, text, disk, server, signals = Recorder(), Seat(), Text(), Disk(), Server(), Signals()
    phases, beside = Phases(), Beside()
    hit = Failpoints([parse(f) for f in failpoints], group=group, rank=rank, past=(), sink=events)
    model = dropping()
    mesh = build_mesh(device=torch.device("cpu"), data_parallel=world)
    plain = torch.float32
    shard(model, blocks=[model.layer], mesh=mesh, param_dtype=plain, reduce_dtype=plain, reshard_after_forward=True)
    optimizer = build_optimizer(
        model.parameters(), name="AdamW", betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, implementation="foreach"
    )
    ensure_optimizer_state(optimizer)
    hooks: list[int] = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(1))
    how = precision(reduction="exact", bits=44, microbatches=SHAPE.microbatches, ranks=world)
    reducer = GradientReducer(model, how=how, bucket_bytes=256, failpoint=hit)
    hit.poison = reducer.poison_next
    compute = Compute(
        group=group,
        rank=rank,
        seed=7,
        model=model,
        device=torch.device("cpu"),
        loader=text,
        reducer=reducer,
        seat=seat,
        phases=phases,
        failpoint=hit,
        at_microbatch=hit.at_microbatch,
    )
    state = keeper(
        model, optimizer, group=group, rank=rank, disk=disk, server=server, signals=signals, phases=phases,
        beside=beside, events=events,
    )  # fmt: skip
    state.void = not good
    ended: list[Lineage] = []
    fields: dict[str, Any] = {
        "group": group,
        "rank": rank,
        "steps": 30,
        "max_norm": 1.0,
        "digest_interval": 0,
        "nonfinite_limit": 3,
        "shape": SHAPE,
        "model": model,
        "params": [p for p in model.parameters() if p.requires_grad],
        "optimizer": optimizer,
        "schedule": SCHEDULE,
        "loader": text,
        "reducer": reducer,
        "compute": compute,
        "sentinel": Sentinel(state.tensors, group=group, seat=seat, digest=state.digest),
        "seat": seat,
        "signals": signals,
        "phases": phases,
        "failpoints": hit,
        "vitals": Vitals(world=1),
        "sink": events,
        "report_end": ended.append,
    }
    parts = Parts(**{**fields, **changes})
    return Rig(
        parts=parts, state=state, transaction=Transaction(parts, state), seat=seat, text=text, disk=disk,
        server=server, events=events, ended=ended, hooks=hooks,
    )  # fmt: skip


def keeper(model: nn.Module, optimizer: torch.optim.Optimizer, *, events: Recorder, **fields: Any) -> StateKeeper:
    """A state keeper of this model, at the seed's state."""
    tensors = closed_list([model], [optimizer])
    seeded = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def from_seed() -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(seeded[name])

    scratch = Clocks(step=0, quorum_id=0, cursor=0, tokens=0, seed=7, config_digest="c0ffee")
    group = dist.group.WORLD
    assert group is not None
    usual: dict[str, Any] = {
        "group": "g0",
        "rank": 0,
        "clocks": scratch,
        "tensors": tensors,
        "from_seed": from_seed,
        "scratch": scratch,
        "fetch": no_fetch,
        "digest_group": group,
        "failpoint": lambda *_: None,
        "sink": events,
        "patience_s": 30.0,
    }
    return StateKeeper(**{**usual, **fields})


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread, as ranks do here: tiny tensors on busy cores lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def world_of_one() -> Iterator[None]:
    """A default process group of this process alone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder, one_thread():
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """The bytes of every tensor, to compare."""
    return {name: local(t).contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, t in tensors.items()}
