"""``phalanx checkpoint from-hf HF_FOLDER OUT_FOLDER --model llama3 --flavor 8B``."""

from __future__ import annotations

import argparse

from ops.console import Console
from ops.conversion import import_arguments, import_command
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A model folder, a checkpoint, a model."""
    import_arguments(parser, what="a Hugging Face model folder: config.json and .safetensors", metavar="HF_FOLDER")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Import."""
    return import_command("hf", options, console)
