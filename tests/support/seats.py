"""The ranks of one group with real seats: torchft's manager, lifelines, a gateway; no model."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from configs.protocol import Terms
from lighthouse.client import Control
from replica_groups.channel import Beside
from replica_groups.identity import serve_seat_store
from replica_groups.lifelines import Hub, Line
from replica_groups.seat import GRANT, NOTICE, Limits, Seat, serve_manager
from replica_groups.signals import Signals

HOST = "127.0.0.1"
LIMITS = Limits(quorum_s=60.0, connect_s=20.0, collective_s=20.0, vote_s=20.0)


class Rank:
    """One rank of ``group``, joined, seated and told what the gateway says."""

    def __init__(self, url: str, group: str, terms: Terms, *, rank: int, world: int) -> None:
        self.signals = Signals()
        self.kept: list[Any] = []
        birth: list[Any] = [None]
        control: Control | None = None
        hub: Hub | None = None
        if rank == 0:
            control = Control(url)
            seated = control.join(terms, group=group, life="first", pid=os.getpid(), ranks=list(range(world)))
            hub = Hub(host=HOST, world=world, on_message=lambda *_: None, on_broken=lambda _: None)
            store, address = serve_seat_store(host=HOST, timeout_s=20.0)
            manager = serve_manager(
                group=group,
                incarnation=seated.incarnation,
                lighthouse=url,
                host=HOST,
                store_address=address,
                world=world,
                limits=LIMITS,
            )
            self.kept += [store, manager]
            birth = [(seated.incarnation, hub.address, manager.address())]
        dist.broadcast_object_list(birth, src=0)
        incarnation, lifeline, manager_address = birth[0]
        if hub is None:
            self.kept.append(Line(address=lifeline, rank=rank, on_message=self._hear, on_broken=lambda _: None))
            self.kept[-1].start()
        else:
            hub.start()
            assert control is not None
            self.watch = control.watch(group, incarnation, self._tell(hub), lambda _: None)
        self.seat = Seat(
            group=group,
            incarnation=incarnation,
            rank=rank,
            world=world,
            backend="gloo",
            manager_address=manager_address,
            signals=self.signals,
            beside=Beside(),
            limits=LIMITS,
            coordinator=control,
            hub=hub,
            failpoint=lambda *_: None,
        )

    def _hear(self, _: int, message: dict[str, Any]) -> None:
        if "notice" in message:
            self.signals.notice(NOTICE.validate_python(message["notice"], strict=False))
        else:
            self.signals.grant(GRANT.validate_python(message["grant"], strict=False))

    def _tell(self, hub: Hub) -> Any:
        def tell(notice: Any) -> None:
            self.signals.notice(notice)
            hub.broadcast({"notice": NOTICE.dump_python(notice, mode="json")})

        return tell
