"""``phalanx chaos list``: the scenarios that come with the package, and what each proves."""

from __future__ import annotations

import argparse

from ops.chaos.reading import load
from ops.chaos.scenario import shipped
from ops.console import Console
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""
    del parser


def run(options: argparse.Namespace, console: Console) -> Result:
    """Each name and its sentence."""
    del options, console
    found = {name: load(name).about for name in shipped()}
    width = max(map(len, found), default=0)
    text = "\n".join(f"{name:<{width}}  {about}" for name, about in found.items())
    return Result(text=text, data={"scenarios": found})
