"""One rank of native HSDP, without torchft and coordinator; ``ops.bench.pin`` runs it, for torchrun.

FSDP2 on a mesh (groups, ranks of a group): sharded inside a group, gradients averaged over the groups by FSDP2 itself.
The model, the data and the batch are those of the config. It saves with a blocking ``dcp.save`` every so many steps and
begins with the newest save; what it commits it writes in the form of our event logs.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from checkpointing.state import closed_list, ensure_optimizer_state
from configs.load import load
from configs.run_folder import EventLog, RunFolder
from configs.schema import Config
from configs.shapes import ranks_per_group
from ops.bench.plain import batch, plain_optimizer, restarts, restore, save, save_every, sharded_model
from trainer.data.build import build as build_data
from trainer.loss import token_loss

LOG = "native"
"""Whose event log it writes: all groups are one job."""
PROBES = "BENCH_SAVE_PROBES"
"""Environment: how many saves are timed before training."""


class Native:
    """The training loop of one rank."""

    def __init__(self, config: Config) -> None:
        """The default process group is all ranks, group after group."""
        ranks, groups = ranks_per_group(config), config.launch.groups
        self._config = config
        self._groups = [f"g{i}" for i in range(groups)]
        self._place, rank = divmod(dist.get_rank(), ranks)
        self._data = build_data(config, dp_rank=rank, log=print)
        mesh = init_device_mesh("cpu", (groups, ranks), mesh_dim_names=("groups", "ranks"))
        self._model = sharded_model(config, vocab_size=self._data.store.vocab_size, mesh=mesh)
        self._optimizer = plain_optimizer(config, self._model)
        ensure_optimizer_state(self._optimizer)
        self.state = closed_list([self._model], [self._optimizer])
        self._folder = Path(config.job.dump_folder) / "checkpoints"
        self._life = restarts()
        path = RunFolder(Path(config.job.dump_folder)).event_log(LOG)
        self._log = EventLog(path, group=LOG, incarnation=self._life)
        self._save_every = save_every()
        self._step = restore(self.state, self._folder) if self._save_every else 0
        self._tell("start", step=self._step, save_s=self._probe(int(os.environ.get(PROBES, "0"))))

    def attempt(self) -> None:
        """One step; an exception ends the job, and torchrun starts all of it again."""
        began = time.time()
        self._optimizer.zero_grad()
        tokens, labels = batch(self._config, self._data, step=self._step, place=self._place)
        (token_loss(self._model(tokens), labels) / labels.numel()).backward()
        self._optimizer.step()
        self._step += 1
        count = labels.numel() * dist.get_world_size()
        shares = {group: [self._step] for group in self._groups}
        seconds = time.time() - began
        self._tell(
            "commit", step=self._step, shares=shares, seconds=seconds, step_tokens=count, maker=self._life, tokens=count
        )
        if self._save_every and self._step % self._save_every == 0:
            save(self.state, self._folder, step=self._step, owner=LOG)

    def _probe(self, count: int) -> float | None:
        """Median seconds of a save, after one that does not count."""
        seconds = []
        for _ in range(count + 1 if count else 0):
            began = time.perf_counter()
            save(self.state, self._folder / "probe", step=1, owner=LOG)
            dist.barrier()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[1:]) if count else None

    def _tell(self, event: str, **fields: Any) -> None:
        if dist.get_rank() == 0:
            self._log(event, **fields)


def main() -> None:
    """Train until killed."""
    config = load(sys.argv[1], sys.argv[2:])
    torch.set_num_threads(config.launch.threads_per_rank)
    dist.init_process_group("gloo")
    native = Native(config)
    while True:
        native.attempt()


if __name__ == "__main__":
    main()
