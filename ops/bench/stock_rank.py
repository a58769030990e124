"""One rank of a group that trains with torchft as its README shows: ``torchrun ... -m ops.bench.stock_rank CONFIG...``

torchft's ``Manager``, ``Optimizer`` wrapper, ``ProcessGroupGloo`` and lighthouse with their defaults, FSDP2 inside the
group, gradients averaged across groups in FSDP2's all-reduce hook; the model, the data and the batch are those of the
config, so that it can be compared with Phalanx. What it commits it writes in the form of our event logs. The state that
heals is named once, before training: torchft reads it on a thread of its own, while FSDP2 swaps parameters.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft import Manager, Optimizer, ProcessGroupGloo

from checkpointing.state import closed_list, ensure_optimizer_state, local
from configs.lifetime import die_with_parent
from configs.load import load
from configs.run_folder import EventLog, RunFolder
from configs.schema import Config
from configs.shapes import microbatches_per_group
from trainer.data.build import build as build_data
from trainer.loss import token_loss
from trainer.models.registry import get
from trainer.optimizer import build_optimizer

GROUP, LIFE = "STOCK_GROUP", "STOCK_LIFE"
"""Environment: the group's name, and which life of it this is."""


class Attempt:
    """When things happened in one attempt, for the log."""

    def __init__(self, manager: Manager) -> None:
        """The quorum has been asked for: it is awaited on a thread, for torchft computes beside it."""
        self.began_t = time.time()
        self.quorum_t = 0.0
        self.reduce_t: float | None = None
        self._ready = threading.Thread(target=self._wait, args=(manager,), daemon=True)
        self._ready.start()

    def reduces(self) -> None:
        """From here on the other groups are needed."""
        if self.reduce_t is None:
            self.reduce_t = time.time()

    def end(self) -> None:
        self._ready.join()

    def _wait(self, manager: Manager) -> None:
        manager.wait_quorum()
        self.quorum_t = time.time()


class Stock:
    """The training loop of one rank."""

    def __init__(self, config: Config, *, group: str, life: int) -> None:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        self._group = group
        self._share = microbatches_per_group(config)
        self._groups = config.launch.groups
        self._place = int(group.lstrip("g"))
        self._log = EventLog(RunFolder(Path(config.job.dump_folder)).event_log(group), group=group, incarnation=life)
        self._writes = rank == 0
        self._data = build_data(config, dp_rank=rank, log=print)
        self._model = _model(config, self._data.store.vocab_size, world=world)
        inner = build_optimizer(
            self._model.parameters(),
            name=config.optimizer.name,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
            eps=config.optimizer.eps,
            weight_decay=config.optimizer.weight_decay,
            implementation=config.optimizer.implementation,
        )
        for options in inner.param_groups:
            options["lr"] = config.optimizer.lr
        ensure_optimizer_state(inner)
        self._state = closed_list([self._model], [inner])
        self._manager = Manager(
            pg=ProcessGroupGloo(),
            load_state_dict=self._load,
            state_dict=lambda: {name: local(tensor) for name, tensor in self._state.items()},
            min_replica_size=1,
            replica_id=group,
        )
        self._optimizer = Optimizer(self._manager, inner)
        self._attempt: Attempt | None = None
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(self._across)
        pids: list[Any] = [None] * world
        dist.all_gather_object(pids, os.getpid())
        self._tell("start", pids=pids)

    def attempt(self) -> None:
        """One try at a step, as in torchft's example loop."""
        step = self._manager.current_step()
        self._optimizer.zero_grad()  # asks for the quorum
        self._attempt = attempt = Attempt(self._manager)
        tokens, labels = self._batch(step)
        (token_loss(self._model(tokens), labels) / labels.numel()).backward()
        self._optimizer.step()  # votes
        attempt.end()
        fields = {"step": self._manager.current_step(), "quorum_t": attempt.quorum_t, "began_t": attempt.began_t}
        seconds = time.time() - attempt.began_t
        if self._manager.current_step() > step:
            shares = {self._group: [step]} if self._manager.is_participating() else {}
            count = self._manager.num_participants()
            mine = labels.numel() * dist.get_world_size() if shares else 0
            self._tell("commit", **fields, participants=count, shares=shares, seconds=seconds, tokens=mine)
        else:
            self._tell("discard", **fields, reduce_t=attempt.reduce_t, seconds=seconds)

    def _across(self, gradient: torch.Tensor) -> None:
        """FSDP2's hook: average a gradient shard over the groups."""
        assert self._attempt is not None
        self._attempt.reduces()
        self._manager.allreduce(gradient).wait()

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = (step * self._groups + self._place) * self._share
        parts = [self._data.loader.get(first + i) for i in range(self._share)]
        return torch.cat([part.tokens for part in parts]), torch.cat([part.labels for part in parts])

    def _load(self, state: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._state.items():
                local(tensor).copy_(state[name])

    def _tell(self, event: str, **fields: Any) -> None:
        if self._writes:
            self._log(event, **fields)


def _model(config: Config, vocab_size: int, *, world: int) -> nn.Module:
    spec = get(config.model.name)
    with torch.device("meta"):
        flavor = spec.flavor(config.model.flavor)
        model = spec.build(flavor, seq_len=config.training.seq_len, vocab_size=vocab_size)
    mesh = init_device_mesh("cpu", (world,))
    reshard = config.parallelism.fsdp_reshard_after_forward != "never"
    for block in spec.blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.to_empty(device="cpu")
    spec.init_weights(model, seed=config.debug.seed)
    return model.train()


def main() -> None:
    """Train until killed."""
    die_with_parent()
    config = load(sys.argv[1], sys.argv[2:])
    torch.set_num_threads(config.launch.threads_per_rank)
    stock = Stock(config, group=os.environ[GROUP], life=int(os.environ[LIFE]))
    while True:
        stock.attempt()


if __name__ == "__main__":
    main()
