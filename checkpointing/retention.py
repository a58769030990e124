"""Which checkpoints stay? The newest few, the milestones, and never fewer than the one just written.

Pure decisions over lineages. Quorum ids grow along a history and a step never falls without a newer one, so of two
published lineages the one with the greater (quorum id, step) is the newer, and a state at or above a newer quorum's
step that an older quorum made lies on a branch that was rolled back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from configs.words import Lineage


@dataclasses.dataclass(frozen=True)
class Retention:
    """What to do with each checkpoint, with the reason."""

    keep: Mapping[Lineage, str]
    delete: Mapping[Lineage, str]
    set_aside: Mapping[Lineage, str]


def newest_first(lineages: Iterable[Lineage]) -> list[Lineage]:
    """In the order in which they were committed, the last one first."""
    return sorted(set(lineages), key=lambda lineage: (lineage.quorum_id, lineage.step), reverse=True)


def abandoned(lineage: Lineage, *, confirmed: Lineage) -> bool:
    """``lineage`` lies on a branch that was rolled back, because ``confirmed`` is a confirmed state."""
    return lineage.step >= confirmed.step and lineage.quorum_id < confirmed.quorum_id


def behind(lineage: Lineage, fence: Lineage) -> bool:
    """``lineage`` lies on a branch that a rollback, to the step of ``fence`` at its quorum, cut off for ever."""
    return lineage.step > fence.step and lineage.quorum_id < fence.quorum_id


def fenced_off(published: Iterable[Lineage], fences: Sequence[Lineage]) -> dict[Lineage, str]:
    """Which of these no reader may take any more, each with the reason."""
    found: dict[Lineage, str] = {}
    for lineage in sorted(published):
        fence = next((fence for fence in fences if behind(lineage, fence)), None)
        if fence is not None:
            found[lineage] = f"it was rolled back: the run went on from step {fence.step}"
    return found


def retain(
    published: Iterable[Lineage], *, durable: Lineage, keep_latest_k: int, keep_every: int | None = None
) -> Retention:
    """What stays now that ``durable``, a confirmed state, is safely on disk.

    ``keep_latest_k`` newest ones (0: all) and every step that ``keep_every`` divides stay; those of a branch that was
    rolled back are set aside; what is newer than ``durable`` is another writer's and stays.
    """
    keep: dict[Lineage, str] = {}
    delete: dict[Lineage, str] = {}
    aside: dict[Lineage, str] = {}
    place = 0
    for lineage in newest_first([*published, durable]):
        if abandoned(lineage, confirmed=durable):
            aside[lineage] = f"it was rolled back: {durable} is confirmed"
            continue
        place += 1
        if keep_latest_k == 0 or place <= keep_latest_k:
            keep[lineage] = f"number {place} of the newest"
        elif keep_every and lineage.step % keep_every == 0:
            keep[lineage] = f"a milestone: every {keep_every} steps"
        elif newest_first([lineage, durable])[0] == lineage:
            keep[lineage] = "not older than the one just written"
        else:
            delete[lineage] = f"{keep_latest_k} newer ones are durable"
    return Retention(keep, delete, aside)
