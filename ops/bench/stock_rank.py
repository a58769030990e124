"""One rank of a group that trains with torchft as its README shows; ``ops.bench.pin`` runs it, for torchrun.

torchft's ``Manager``, ``Optimizer`` wrapper, ``ProcessGroupGloo`` and lighthouse with their defaults, FSDP2 inside the
group, gradients averaged across groups in FSDP2's all-reduce hook; the model, the data and the batch are those of the
config, so that it can be compared with Phalanx. What it commits it writes in the form of our event logs. The state that
heals is named once, before training: torchft reads it on a thread of its own, while FSDP2 swaps parameters. Where saves
are asked for, the first participant makes them, and a group begins with the newest, as torchft's README advises.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torchft import Manager, Optimizer, ProcessGroupGloo

from checkpointing.state import closed_list, ensure_optimizer_state, local
from configs.load import load
from configs.run_folder import EventLog, RunFolder
from configs.schema import Config
from ops.bench.plain import batch, plain_optimizer, restarts, restore, save, save_every, sharded_model
from trainer.data.build import build as build_data
from trainer.loss import token_loss

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
        self._config = config
        self._save_every = save_every()
        self._checkpoints = Path(config.job.dump_folder) / "checkpoints"
        self._place = int(group.lstrip("g"))
        self._log = EventLog(RunFolder(Path(config.job.dump_folder)).event_log(group), group=group, incarnation=life)
        self._writes = rank == 0
        self._data = build_data(config, dp_rank=rank, log=print)
        mesh = init_device_mesh("cpu", (world,))
        self._model = sharded_model(config, vocab_size=self._data.store.vocab_size, mesh=mesh)
        inner = plain_optimizer(config, self._model)
        ensure_optimizer_state(inner)
        self._state = closed_list([self._model], [inner])
        self._manager = Manager(
            pg=ProcessGroupGloo(),
            load_state_dict=self._load,
            state_dict=lambda: {name: local(tensor) for name, tensor in self._state.items()},
            min_replica_size=1,
            replica_id=group,
        )
        if self._save_every and (saved := restore(self._state, self._checkpoints)):
            self._manager.load_state_dict({"step": saved, "batches_committed": saved * config.launch.groups})
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
        tokens, labels = batch(self._config, self._data, step=step, place=self._place)
        (token_loss(self._model(tokens), labels) / labels.numel()).backward()
        self._optimizer.step()  # votes
        attempt.end()
        fields = {"step": self._manager.current_step(), "quorum_t": attempt.quorum_t, "began_t": attempt.began_t}
        seconds = time.time() - attempt.began_t
        if self._manager.current_step() > step:
            shares = {self._group: [step]} if self._manager.is_participating() else {}
            count = self._manager.num_participants()
            each = labels.numel() * dist.get_world_size()
            self._tell(
                "commit",
                **fields,
                participants=count,
                shares=shares,
                seconds=seconds,
                tokens=each if shares else 0,
                step_tokens=each * count,
                maker=self._manager._quorum_id,
            )
            self._save_in_turn()
        else:
            self._tell("discard", **fields, reduce_t=attempt.reduce_t, seconds=seconds)

    def _save_in_turn(self) -> None:
        """The first participant saves; the others go on and wait for it in the next reduction."""
        step = self._manager.current_step()
        if self._save_every and step % self._save_every == 0 and self._manager.participating_rank() == 0:
            save(self._state, self._checkpoints, step=step, owner=self._group)

    def _across(self, gradient: torch.Tensor) -> None:
        """FSDP2's hook: average a gradient shard over the groups."""
        assert self._attempt is not None
        self._attempt.reduces()
        self._manager.allreduce(gradient).wait()

    def _load(self, state: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._state.items():
                local(tensor).copy_(state[name])

    def _tell(self, event: str, **fields: Any) -> None:
        if self._writes:
            self._log(event, **fields)


def main() -> None:
    """Train until killed."""
    config = load(sys.argv[1], sys.argv[2:])
    torch.set_num_threads(config.launch.threads_per_rank)
    stock = Stock(config, group=os.environ[GROUP], life=int(os.environ[LIFE]) + restarts())
    while True:
        stock.attempt()


if __name__ == "__main__":
    main()
