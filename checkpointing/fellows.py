"""How do the ranks of one group agree? Small exchanges over one process group, which nobody else may use meanwhile.

Every call is a collective: all ranks must make it, in the same order. The objects are pickled by torch, inside the
group's own process group. Without a process group there is one rank and nothing is sent.
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch
import torch.distributed as dist

T = TypeVar("T")


class Fellows:
    """The ranks of one group, as seen from one of them. ``group`` must be a CPU (gloo) process group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def all(self, mine: T) -> list[T]:
        """What every rank gave, in rank order."""
        if self.group is None:
            return [mine]
        given: list[T] = cast("list[T]", [None] * self.size)
        dist.all_gather_object(given, mine, group=self.group)
        return given

    def first(self, mine: T) -> T:
        """What rank 0 gave; the others' arguments are ignored."""
        if self.group is None:
            return mine
        given = [mine]
        dist.broadcast_object_list(given, group=self.group, group_src=0)
        return given[0]

    def send(self, data: torch.Tensor, *, to: int) -> None:
        """Send a CPU tensor; the other side calls ``receive`` with as many bytes."""
        dist.send(data, group=self.group, group_dst=to)

    def receive(self, data: torch.Tensor, *, source: int) -> None:
        """Receive into a CPU tensor, in place."""
        dist.recv(data, group=self.group, group_src=source)
