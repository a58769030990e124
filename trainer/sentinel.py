"""Do the groups still hold the same state? Checked at every attempt, before anything of the state is trusted.

Groups of one lineage hold the same bits, so corruption of memory shows as groups that differ. Before it computes, each
rank sums the bit patterns of its shards: an eighth of the tensors, in rotation over the steps, and all of them when the
state is to be published as a checkpoint. The sums ride in the summary; every participant sees all of them and decides
alike. Three or more: the odd ones are void and heal from the majority. Otherwise nobody can tell who is right: all are
void, and the gateway rolls back to the last published state, which they agreed on. Healers hold what was verified on
its way and are compared from the next attempt on.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from checkpointing.checksum import checksum, total
from configs.protocol import Grant
from configs.words import SCRATCH, SENTINEL_ROTATION, DiscardReason
from replica_groups.channel import Channel
from replica_groups.seat import Seat, Seating
from replica_groups.signals import AttemptOver

SHOWN = 20
"""Names of tensors that are told at most."""
_DIGEST_WORDS = 4


class Doubt(enum.IntEnum):
    """What a divergence makes of this group's own state. The greatest of a group's ranks holds for all of them."""

    NONE = 0
    """It is the majority's."""
    ODD = 1
    """It differs from the majority's: void."""
    DISPUTED = 2
    """There is no majority: void, and nobody's may be used."""
    FIRST = 3
    """There is no state to go back to: the groups start from different weights."""


class Diverged(AttemptOver):
    """Groups of one lineage hold different states."""

    def __init__(self, doubt: Doubt, *, groups: tuple[str, ...], tensors: tuple[str, ...], text: str) -> None:
        super().__init__(DiscardReason.DIVERGENCE, text)
        self.doubt = doubt
        self.groups = groups
        """Who differs: the odd ones, or all where there is no majority."""
        self.tensors = tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Groups that differ."""

    odd: tuple[str, ...]
    disputed: bool
    """No majority: ``odd`` are all."""
    reason: str


def judge(sums: Mapping[str, int]) -> Split | None:
    """Who differs, of the groups that hold the current state? None: nobody. Pure; all participants decide alike."""
    camps = Counter(sums.values())
    if len(camps) < 2:
        return None
    usual, votes = camps.most_common(1)[0]
    if votes * 2 > len(sums):
        odd = tuple(group for group, value in sums.items() if value != usual)
        return Split(odd=odd, disputed=False, reason=f"{', '.join(odd)} differ from {votes} of {len(sums)} groups")
    names = ", ".join(sums)
    return Split(
        odd=tuple(sums), disputed=True, reason=f"{names} hold {len(camps)} different states, none a majority's"
    )


class Sentinel:
    """The checksums of one rank."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        group: str,
        seat: Seat,
        digest: Callable[[], str],
        enabled: bool = True,
    ) -> None:
        """``digest`` is that of the whole state, collective over the group."""
        self._tensors = dict(tensors)
        self._names = sorted(tensors)
        self._group = group
        self._seat = seat
        self._digest = digest
        self._enabled = enabled
        self._sums: dict[str, torch.Tensor] = {}
        self.seconds = 0.0
        """What the last look took."""

    def look(self, grant: Grant, *, whole: bool) -> None:
        """Sum my shards for this attempt, if there is anybody to compare them with. While nobody writes them."""
        began = time.perf_counter()
        self._sums = {}
        if self._compares(grant) and self._group in grant.up_to_date:
            names = self._names if whole else self._names[grant.current.step % SENTINEL_ROTATION :: SENTINEL_ROTATION]
            self._sums = {name: checksum(self._tensors[name]) for name in names}
        self.seconds = time.perf_counter() - began

    def sum(self) -> int:
        """Of the last look, this rank's part."""
        if not self._sums:
            return 0
        return total(torch.stack(list(self._sums.values())).tolist())

    def compare(self, sums: Mapping[str, int], seating: Seating, channel: Channel) -> None:
        """``sums``: what the summary says of each participant's group. Raises Diverged, alike in all participants, and
        AttemptOver when they lose each other while they find out which tensors differ."""
        grant = seating.grant
        split = judge({name: sums[name] for name in grant.up_to_date}) if self._compares(grant) else None
        if split is None:
            return
        differing = self._differing(seating, channel)
        if grant.current == SCRATCH:
            digests = self._digests(seating, channel)
            text = "; ".join(f"{name} starts from {digest}" for name, digest in digests.items())
            raise Diverged(
                Doubt.FIRST, groups=split.odd, tensors=differing, text=f"different weights at the start: {text}"
            )
        mine = self._group in split.odd
        doubt = Doubt.DISPUTED if split.disputed else Doubt.ODD if mine else Doubt.NONE
        raise Diverged(doubt, groups=split.odd, tensors=differing, text=split.reason)

    def closing(self, seating: Seating, channel: Channel) -> int:
        """Compare all there is before the last state is published: the group's sum. Raises as ``compare``."""
        self.look(seating.grant, whole=True)
        mine = torch.tensor([self.sum()], dtype=torch.int64)
        dist.all_reduce(mine)
        rows = self._exchange(mine, seating, channel)
        names = seating.grant.names
        self.compare({name: int(row[0]) for name, row in zip(names, rows, strict=True)}, seating, channel)
        return int(mine)

    def _compares(self, grant: Grant) -> bool:
        return self._enabled and len(grant.up_to_date) > 1

    def _differing(self, seating: Seating, channel: Channel) -> tuple[str, ...]:
        """Names of the tensors that differ in any rank. Collective over the participants, then over the group."""
        names = self._names
        none = torch.zeros((), dtype=torch.int64)
        mine = torch.stack([self._sums.get(name, none).cpu() for name in names])
        held = [row for row, name in zip(self._exchange(mine, seating, channel), seating.grant.names, strict=True)
                if name in seating.grant.up_to_date]  # fmt: skip
        differs = (torch.stack(held) != held[0]).any(dim=0).tolist()
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, [name for name, yes in zip(names, differs, strict=True) if yes])
        return tuple(sorted({name for part in found for name in part}))[:SHOWN]

    def _digests(self, seating: Seating, channel: Channel) -> dict[str, str]:
        """sha256 of each participant's whole state."""
        mine = bytes.fromhex(self._digest())
        words = [int.from_bytes(mine[i : i + 8], "big", signed=True) for i in range(0, 8 * _DIGEST_WORDS, 8)]
        rows = self._exchange(torch.tensor(words, dtype=torch.int64), seating, channel)
        hexes = ["".join(word.to_bytes(8, "big", signed=True).hex() for word in row.tolist()) for row in rows]
        return dict(zip(seating.grant.names, hexes, strict=True))

    def _exchange(self, mine: torch.Tensor, seating: Seating, channel: Channel) -> torch.Tensor:
        """Every participant's values, by participant rank: int64 [participants, values]. Raises AttemptOver on all
        ranks of the group or on none: those that go on meet in the group's next collective."""
        device = next(iter(self._tensors.values())).device if channel.on_device else torch.device("cpu")
        rows = torch.zeros(seating.size, mine.numel(), dtype=torch.int64, device=device)
        rows[seating.rank] = mine.to(device)
        channel.post(rows)
        over: AttemptOver | None = None
        try:
            self._seat.finish(seating, channel)
        except AttemptOver as reason:
            over = reason
        self._seat.together(over)
        return rows.cpu()


def heaviest(over: AttemptOver | None) -> Diverged | None:
    """What the ranks of this group have found, the heaviest doubt of all: they must not differ in what their state is
    worth. Collective over the group."""
    mine = (int(over.doubt), over.groups, over.tensors, over.text) if isinstance(over, Diverged) else None
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    told = [entry for entry in found if entry is not None]
    if not told:
        return None
    doubt, groups, tensors, text = max(told, key=lambda entry: int(entry[0]))
    return Diverged(Doubt(doubt), groups=tuple(groups), tensors=tuple(tensors), text=text)
