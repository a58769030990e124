"""A group of one rank that trains as torchft's README shows, with an unmodified Manager: torchft_group.py URL GROUP.

What Phalanx asks of it are the first lines of ``main``: join, watch, and the replica id. Each commit is a JSON line.
"""

import json
import socket
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from configs.protocol import Terms
from lighthouse.client import Control

torch.set_num_threads(1)


def main(url, group):
    terms = Terms(
        run="plain",
        config_digest="",
        groups=2,
        min_groups=1,
        start_wait_s=60.0,
        failure_detection_s=2.0,
        steps=0,
    )
    control = Control(url)
    seated = control.join(terms, group=group, manager=True)
    control.watch(group, seated.incarnation, lambda notice: None, lambda reason: None)

    torch.manual_seed(seated.incarnation)  # a successor must not be right by chance
    model = torch.nn.Linear(16, 4)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=url,
        replica_id=f"{group}:{seated.incarnation}",
        hostname="127.0.0.1",
        quorum_retries=600,  # every 100 ms while the lighthouse is away
    )
    train(manager, DistributedDataParallel(manager, model), Optimizer(manager, inner), seated.incarnation)
    del store


def train(manager, model, optimizer, incarnation):
    while True:
        step = manager.current_step()
        optimizer.zero_grad()  # starts the quorum
        generator = torch.Generator().manual_seed(1000 * step + manager.num_participants())
        model(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()  # if all is well
        if manager.current_step() == step:
            continue
        weights = [float(p.detach().double().sum()) for p in model.parameters()]
        said = {
            "incarnation": incarnation,
            "step": manager.current_step(),
            "participants": manager.num_participants(),
            "weights": weights,
        }
        print(json.dumps(said), flush=True)
        if not sys.stdin.readline():  # the test paces it
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
