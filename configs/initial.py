"""Can a folder be one that ``checkpoint.initial_load_path`` names, by what lies around its checkpoints?

Asked by the launcher before anything starts, and by the ranks; whether a checkpoint there can be used is for those who
read it.
"""

from __future__ import annotations

from pathlib import Path

from configs.load import ConfigError, parse_text
from configs.names import EACH_GROUP, is_url
from configs.run_folder import RunFolder


def misplaced(path: Path) -> str:
    """Why no checkpoint can be meant by ``path``; empty when one may be."""
    if not path.is_dir():
        return "no such folder"
    config = RunFolder(path).config
    if not config.is_file():
        return ""
    try:
        folder = parse_text(config.read_text(), where=str(config)).checkpoint.folder
    except (ConfigError, OSError, UnicodeDecodeError):
        return ""  # of another version, perhaps: its checkpoints may be good
    return own_folders(path, folder) if EACH_GROUP in folder else ""


def own_folders(run: Path, folder: str) -> str:
    """What to name instead of a run whose ``checkpoint.folder`` has the group's name in it."""
    found = [] if is_url(folder) else sorted(run.glob(folder.replace(EACH_GROUP, "*")))
    there = folder if is_url(folder) else ", ".join(map(str, found)) or "none yet"
    return f"each group of {run} has a folder of its own; name one: {there}"
