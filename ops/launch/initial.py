"""Is the folder that step 0 takes its values from there, if this run will need it? Looked at before anything starts."""

from __future__ import annotations

from pathlib import Path

from configs.initial import misplaced
from configs.names import EACH_GROUP, is_url
from configs.run_folder import RunFolder
from configs.schema import Config
from configs.words import Exit, ExitRequest, Lineage


def check_initial(config: Config, folder: RunFolder) -> None:
    """Raises ExitRequest(2) when ``checkpoint.initial_load_path`` is a folder that is not there, or not the one.

    A run that has checkpoints goes on from those, and may have lost it. What lies in an object store is not asked for
    here: neither the path's, nor the run's own checkpoints, which may be there for a run folder that is new.
    """
    asked = config.checkpoint
    given = asked.initial_load_path
    if given is None or is_url(given) or not (asked.enable or asked.initial_load_in_hf):
        return
    if asked.enable and (is_url(asked.folder) or _holds_checkpoints(folder, asked.folder)):
        return
    if why := misplaced(Path(given).expanduser()):
        raise ExitRequest(Exit.BAD_CONFIG, f"checkpoint.initial_load_path = {given!r}: {why}")


def _holds_checkpoints(folder: RunFolder, name: str) -> bool:
    paths = folder.root.glob(f"{name.replace(EACH_GROUP, '*')}/step-*")
    return any(Lineage.parse_folder(path.name) for path in paths)
