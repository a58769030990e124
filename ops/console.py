"""Where does a command write what people read?

On a terminal in colour, with a bar that stays below the lines; elsewhere plain lines. With ``--json`` stdout belongs to
the one object at the end, so everything else goes to stderr, also what libraries and children print there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Console:
    """Lines for people. Thread-safe."""

    def __init__(self, stream: TextIO) -> None:
        self._rich = RichConsole(file=stream, highlight=False, soft_wrap=True)
        self._stream = stream
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def say(self, text: str, *, style: str | None = None) -> None:
        """One line (or several), as it is."""
        if self._rich.is_terminal:
            self._rich.print(text, style=style, markup=False)
        else:
            with contextlib.suppress(BrokenPipeError):  # the reader has gone; the run goes on
                print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def bar(self, total: int) -> Iterator[None]:
        """Show a bar of ``total`` steps below the lines while inside; nothing where there is no terminal."""
        if not self._rich.is_terminal:
            yield
            return
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self._rich, transient=True, refresh_per_second=4) as self._bar:
            self._task = self._bar.add_task("starting", total=total)
            try:
                yield
            finally:
                self._bar = self._task = None

    def progress(self, step: int, description: str) -> None:
        """Move the bar, if there is one."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, description=description)


@contextlib.contextmanager
def reserved_stdout(reserve: bool) -> Iterator[TextIO]:
    """The stream for a command's result. With ``reserve`` nothing else can reach it while inside: descriptor 1 points
    to stderr, for children too."""
    if not reserve:
        yield sys.stdout
        return
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        with os.fdopen(os.dup(own), "w") as result:
            yield result
    finally:
        sys.stdout = before
        os.dup2(own, 1)
        os.close(own)
