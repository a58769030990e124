"""One rank's parts around a tiny model: real compute, reducer, optimizer and state keeper; the seat is scripted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checkpointing.state import Clocks, closed_list, ensure_optimizer_state, local
from configs.failpoints import parse
from configs.protocol import Grant
from configs.words import DiscardReason, Lineage
from replica_groups.channel import Beside
from replica_groups.mesh import build_mesh, shard
from replica_groups.plan import BatchShape
from replica_groups.reduce import GradientReducer, precision
from replica_groups.seat import Seating, Standing
from replica_groups.signals import AttemptOver, Signals
from tests.support.grants import grant
from tests.support.states import Recorder
from tests.support.sums import Posted
from trainer.compute import Compute
from trainer.failpoints import Failpoints
from trainer.loss import IGNORED
from trainer.optimizer import build_optimizer
from trainer.parts import Parts
from trainer.phases import Phases
from trainer.schedule import Schedule
from trainer.state import StateKeeper
from trainer.transaction import Transaction

SHAPE = BatchShape(microbatches=4, samples=2, seq_len=8)
SCHEDULE = Schedule(base=3e-2, steps=30, warmup=3, decay_ratio=0.5, decay_type="cosine", min_factor=0.1)
WORDS = 13


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


class Text:
    """The same microbatch for the same number; ``blank`` are positions without a label, by microbatch."""

    def __init__(self) -> None:
        self.blank: dict[int, int] = {}
        self.asked: list[int] = []
        self.plans: list[list[int]] = []

    def plan(self, microbatches: list[int]) -> None:
        self.plans.append(list(microbatches))

    def get(self, microbatch: int) -> Any:
        self.asked.append(microbatch)
        generator = torch.Generator().manual_seed(microbatch)
        rows = torch.randint(WORDS, (SHAPE.samples, SHAPE.seq_len + 1), generator=generator)
        labels = rows[:, 1:].clone()
        labels.view(-1)[: self.blank.get(microbatch, 0)] = IGNORED
        return SimpleNamespace(tokens=rows[:, :-1].clone(), labels=labels)


class Seat:
    """A seat that grants what it is told to, and loses the attempt where it is told to."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.lose_at: str | None = None
        """connect, sums, summary or vote: where the next attempt is lost."""
        self.alter: Callable[[torch.Tensor], None] | None = None
        """What the other groups add to the next summary."""
        self.add_from: Posted | None = None
        """What another group has posted in the same attempt, all of it."""
        self.standings: list[Standing] = []
        self.abandoned = 0
        self.channel = Posted()
        self.fellow_lost = False
        """Another rank of the group is told of a loss before this one."""
        self.votes: list[bool] = []
        self._added = 0

    def agree(self, mine: Standing) -> Standing:
        self.standings.append(mine)
        return mine

    def quorum(self, standing: Standing, *, disk: tuple[Lineage, ...] = ()) -> Seating:
        number = len(self.standings)
        made = self.grants.pop(0) if self.grants else grant(attempt=number, running=1, current=standing.lineage)
        return Seating(grant=made, rank=0, store_address="")

    def connect(self, seating: Seating) -> Posted:
        self._lose("connect")
        self.channel, self._added = Posted(), 0
        return self.channel

    def finish(self, seating: Seating, channel: Posted) -> None:
        last = channel.buffers[-1] if channel.buffers else torch.empty(0)
        if self.add_from is not None:
            for mine, other in zip(channel.buffers[self._added :], self.add_from.buffers[self._added :], strict=False):
                mine += other
            self._added = len(channel.buffers)
        if last.numel() == 5 and last.dtype == torch.int64:
            self._lose("summary")
            if self.alter is not None:
                self.alter(last)
        else:
            self._lose("sums")

    def together(self, over: AttemptOver | None) -> None:
        if over is not None:
            raise over
        if self.fellow_lost:
            raise AttemptOver(DiscardReason.PEER_LOST, "another rank was told")

    def vote(self, *, step: int, complete: bool) -> bool:
        self.votes.append(complete)
        lost, self.lose_at = self.lose_at == "vote", None if self.lose_at == "vote" else self.lose_at
        return complete and not lost

    def abandon(self) -> None:
        self.abandoned += 1

    def _lose(self, where: str) -> None:
        if self.lose_at == where:
            self.lose_at = None
            raise AttemptOver(DiscardReason.PEER_LOST, f"lost at {where}")


class Disk:
    """A disk that remembers what it was told; ``held`` is what can be loaded."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.found: tuple[Any, ...] = ()
        self.held: dict[Path, tuple[Mapping[str, torch.Tensor], Clocks]] = {}
        self.during: Callable[[], None] = lambda: None

    def offered(self) -> tuple[Any, ...]:
        self.told.append(("offered",))
        return self.found

    def seen(self) -> tuple[Any, ...]:
        return self.found

    def load(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> Clocks:
        self.during()
        saved, clocks = self.held[path]
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
        return clocks

    def save(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks, *, rank: int, size: int) -> None:
        self.told.append(("save", clocks.lineage, rank, size))

    def save_last(self, tensors: Mapping[str, torch.Tensor], clocks: Clocks) -> None:
        self.told.append(("save_last", clocks.lineage))

    def confirm(self, lineage: Lineage) -> None:
        self.told.append(("confirm", lineage))

    def orphan(self, lineage: Lineage) -> None:
        self.told.append(("orphan", lineage))

    def drain(self) -> None:
        self.told.append(("drain",))


class Server:
    """A state server that only remembers its windows."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self.is_open = False

    def open(self, **window: Any) -> None:
        self.windows.append(window)
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


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
        "mesh": mesh,
        "model": model,
        "params": [p for p in model.parameters() if p.requires_grad],
        "optimizer": optimizer,
        "schedule": SCHEDULE,
        "loader": text,
        "reducer": reducer,
        "compute": compute,
        "seat": seat,
        "signals": signals,
        "phases": phases,
        "failpoints": hit,
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
