"""What do the commands that convert weights have in common? Their arguments, and which exit code an error comes to."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from configs import known
from configs.load import ConfigError
from configs.names import is_url, nearest
from configs.secret import secret_key
from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.result import Result
from trainer.data.errors import DataError


def import_arguments(parser: argparse.ArgumentParser, *, what: str, metavar: str) -> None:
    """Of ``from-hf`` and ``from-meta``."""
    parser.add_argument("folder", metavar=metavar, type=local_path, help=what)
    parser.add_argument("out", metavar="OUT_FOLDER", type=local_path, help="the checkpoint to write; it must not exist")
    parser.add_argument("--model", required=True, help=f"the model: {', '.join(known.MODELS)}")
    parser.add_argument("--flavor", required=True, help="its flavor, such as 8B")


def place(text: str) -> str:
    """The type of an argument that is a path or a URL. An empty one would be the working directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a path, found an empty one")
    return text


def local_path(text: str) -> Path:
    """The type of an argument that cannot be a URL, which would become a folder of that name."""
    if is_url(place(text)):
        raise argparse.ArgumentTypeError(f"expected a local path, found {text}")
    return Path(text)


def import_command(kind: Literal["hf", "original"], options: argparse.Namespace, console: Console) -> Result:
    """Import weights. Exit 2 for paths and names that cannot be used, 6 for weights that do not fit the model."""
    folder_given(options.folder)
    _model_given(options.model, options.flavor)
    with conversion():
        from trainer.convert import import_weights  # heavy: torch

        data = import_weights(
            kind,
            options.folder,
            options.out,
            model=options.model,
            flavor=options.flavor,
            secret=secret_key(),
            progress=_tenths(console),
        )
    text = f"{options.out}: {data['parameters']:,} parameters, {data['bytes'] / 1e6:,.1f} MB"
    return Result(text=text, data=data)


@contextlib.contextmanager
def conversion() -> Iterator[None]:
    """Errors of a conversion as exit codes."""
    try:
        yield
    except (OSError, ConfigError, DataError, ValueError) as error:  # ValueError: an unknown model or flavor
        raise ExitRequest(Exit.BAD_CONFIG, str(error)) from error


def folder_given(path: Path) -> None:
    """Raises ExitRequest when it is no folder."""
    if not path.is_dir():
        raise ExitRequest(Exit.BAD_CONFIG, f"{path}: no such folder")


def _model_given(model: str, flavor: str) -> None:
    for kind, name, names in (("model", model, known.MODELS), ("flavor", flavor, known.MODELS.get(model, ()))):
        if name not in names:
            near = nearest(name, names)
            hint = f" (did you mean {near}?)" if near else f"; known: {', '.join(names)}"
            raise ExitRequest(Exit.BAD_CONFIG, f"no {kind} is called {name!r}{hint}")


class _tenths:  # noqa: N801  called like a function
    """Says a line at each tenth of the way."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, -1

    def __call__(self, text: str) -> None:
        tenth = int(text.split("%")[0]) // 10
        if tenth > self._last:
            self._last = tenth
            self._console.say(text)
