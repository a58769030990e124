"""The demo scenario: g1 is killed at one third of the run, g0 at two thirds; then the same run once more, undisturbed.

Both groups die once, so each heals from the other; the second run, one group alone, shows that the kills changed
nothing: its digest is the same.
"""

from __future__ import annotations

from configs.schema import Config
from configs.shapes import global_batch
from ops.chaos.driver import Strike

UNDISTURBED = "undisturbed"
"""Folder, below the run folder, of the run it is compared with."""


def strikes(config: Config) -> tuple[Strike, ...]:
    """Whom the scenario of a config kills, and when, in order."""
    if config.chaos.scenario != "demo":
        return ()
    steps, groups = config.training.steps, config.launch.groups
    victims = ("g1", "g0") if groups > 1 else ("g0", "g0")
    thirds = (max(1, steps // 3), max(2, 2 * steps // 3))
    return tuple(Strike(group=group, step=step) for group, step in zip(victims, thirds, strict=True))


def undisturbed(config: Config) -> Config:
    """The same training with one group and no faults, in a folder of its own. The global batch is that of the run it is
    compared with, whatever the number of groups."""
    folder = f"{config.job.dump_folder.rstrip('/')}/{UNDISTURBED}"
    return config.model_copy(
        update={
            "job": config.job.model_copy(update={"dump_folder": folder, "name": f"{config.job.name}-{UNDISTURBED}"}),
            "training": config.training.model_copy(update={"global_batch_size": global_batch(config)}),
            "launch": config.launch.model_copy(update={"groups": 1, "devices": ()}),
            "chaos": config.chaos.model_copy(update={"scenario": "none", "failpoints": ()}),
            "fault_tolerance": config.fault_tolerance.model_copy(update={"min_groups": 1}),
        }
    )
