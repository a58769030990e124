"""Failures do not change the training: SIGKILL at every named place, and the run is the undisturbed one to the bit."""

from __future__ import annotations

import pytest

from configs.failpoints import NAMES
from configs.words import Exit

SPACING = 6
"""Steps between kills. At least two groups must be there, so whoever is killed comes back to heal, however short the
steps of this machine are beside a group's return."""


STEPWISE = [
    name
    for name in NAMES
    if name not in ("build", "configure", "closing", "shutdown") and name[:4] not in ("heal", "save")
]
"""Those that every attempt passes; the others fire the first time they are passed."""


def points(groups: int, ranks: int) -> tuple[list[str], int]:
    """A kill at every failpoint, one after the other, each time of another group and another rank; and the steps."""
    found, step = [], 3
    for number, name in enumerate(NAMES):
        group, rank = f"g{number % groups}", number % ranks
        where = f"@{step}" if name in STEPWISE else ""
        if name == "heal_send":  # the source of the first heal: not the group that heals first
            group = f"g{(number + 1) % groups}"
        if name in ("save_rename", "shutdown"):  # rank 0 publishes, and its end is its fellows' wherever they are
            rank = 0
        found.append(f"{group}:{name}{where}#{rank}:kill")
        step += SPACING
    return found, step


@pytest.mark.parametrize(("groups", "ranks"), [(2, 2), (3, 1)])
def test_a_kill_at_every_failpoint_changes_nothing(rig, groups, ranks):
    kills, steps = points(groups, ranks)
    undisturbed = rig.run(f"alone-{ranks}", groups=1, ranks=ranks, steps=steps, launch__groups=1)
    assert undisturbed.code == Exit.DONE, undisturbed.said
    disturbed = rig.run(
        f"killed-{groups}x{ranks}",
        groups=groups,
        ranks=ranks,
        steps=steps,
        chaos__failpoints=kills,
        fault_tolerance__min_groups=2,
    )
    assert disturbed.code == Exit.DONE, disturbed.said
    missed = {kill for kill in kills if not any(kill.split(":kill")[0] in fired for fired in disturbed.kills())}
    assert not missed, f"never fired: {missed}"
    ledger = disturbed.ledger
    assert (ledger.missing, ledger.duplicated, ledger.order_matches) == (0, 0, True), ledger
    assert ledger.steps == steps
    assert disturbed.series("digest") == undisturbed.series("digest")
    assert disturbed.series("loss") == undisturbed.series("loss")
