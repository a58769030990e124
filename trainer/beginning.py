"""May a run begin from its seed? Not where it has been further: checkpoints that are gone are not nothing.

Asked of a group that finds no checkpoint of its own. A folder that is not mounted looks like one in which nothing was
ever saved; the event logs tell the difference. Another group may still bring the state.
"""

from __future__ import annotations

from configs.run_folder import RunFolder, read_events


def lost_checkpoints(run: RunFolder, *, folder: str) -> str | None:
    """What is missing, where the logs of this run tell of checkpoints that were saved. ``folder``: where they were."""
    saved = [
        int(event["step"])
        for path in run.events.glob("*.jsonl")
        for event in read_events(path)
        if event["event"] == "checkpoint" and event.get("status") == "saved"
    ]
    if not saved:
        return None
    return (
        f"no checkpoint is in {folder}, but {len(saved)} were saved in this run, the newest of step {max(saved)}: "
        "bring them back (is its disk mounted?), or begin anew in another job.dump_folder"
    )
