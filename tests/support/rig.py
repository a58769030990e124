"""Whole runs for tests: real processes, real gloo, real kills, on a model small enough to be quick.

One warm server for the whole session, so that a run costs its steps and not its imports. The runs of a test read their
expectations from the event logs only, as a user's tools do.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from configs.load import parse_text
from configs.run_folder import Event, RunFolder, read_events
from configs.schema import Config
from configs.words import Lineage
from ops.console import Console
from ops.goodput import read_goodput
from ops.history import Logs, confirmed_chain, read_logs
from ops.launch.command import layouts_of
from ops.launch.requests import Requests
from ops.launch.run import LocalRun, Orders
from ops.launch.warm import Warm
from ops.ledger import Ledger, read_ledger
from tests.support.data import write_corpus

BASE = """
[job]
name = "rig"
[model]
flavor = "tiny"
[optimizer]
lr = 3e-3
[lr_scheduler]
warmup_steps = 5
[training]
dataset = "text"
vocab_size = 300
global_batch_size = 6
seq_len = 16
mixed_precision_param = "float32"
workers = 0
[launch]
threads_per_rank = 1
backoff_s = 0.1
[fault_tolerance]
reduction = "exact"
[debug]
digest_interval = 1
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has ended."""

    code: int
    reason: str
    folder: RunFolder
    said: str

    @property
    def logs(self) -> Logs:
        return read_logs(self.folder.root)

    def events(self, group: str, *names: str) -> list[Event]:
        return [e for e in read_events(self.folder.event_log(group)) if not names or e["event"] in names]

    @property
    def ledger(self) -> Ledger:
        return read_ledger(self.logs)

    @property
    def chain(self) -> tuple[Lineage, ...]:
        """The confirmed history."""
        return confirmed_chain(self.events("lighthouse")).lineages

    def commits(self) -> dict[int, list[Event]]:
        """The commit records of each confirmed step, of all groups."""
        found: dict[int, list[Event]] = {lineage.step: [] for lineage in self.chain}
        names = {str(lineage) for lineage in self.chain}
        for group in self.logs.groups:
            for event in self.events(group, "commit"):
                if event["lineage"] in names:
                    found[event["step"]].append(event)
        return found

    def series(self, field: str) -> dict[int, object]:
        """One value per confirmed step; raises AssertionError where groups disagree."""
        series: dict[int, object] = {}
        for step, records in self.commits().items():
            values = {json.dumps(record[field]) for record in records}
            assert len(values) == 1, f"step {step}: groups disagree about {field}: {values}"
            series[step] = records[0][field]
        return series

    def kills(self) -> list[str]:
        """Failpoints that fired."""
        return [e["failpoint"] for group in self.logs.groups for e in self.events(group, "fault")]


class Rig:
    """Starts runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._corpus = write_corpus(root / "corpus", files=40, lines=120)
        self.warm = Warm()

    def config(self, name: str, *, groups: int = 2, ranks: int = 2, steps: int, **keys: object) -> Config:
        """A config of the rig; further keys as ``section__key=value``."""
        given = {
            "job.dump_folder": self._root / name,
            "job.cache_folder": self._root / "cache",
            "training.dataset_path": self._corpus,
            "training.steps": steps,
            "training.local_batch_size": 2 // ranks,
            "launch.groups": groups,
            "launch.ranks_per_group": ranks,
            **{key.replace("__", "."): value for key, value in keys.items()},
        }
        words = [word for key, value in given.items() for word in (f"--{key}", _text(value))]
        return parse_text(BASE, words)

    def run(self, name: str, **options: object) -> Run:
        """Run to the end. A second run of the same name goes on in its folder."""
        return self.run_config(self.config(name, **options))  # type: ignore[arg-type]

    def run_config(
        self, config: Config, *, groups: Sequence[str] | None = None, hear: Callable[[str], None] | None = None
    ) -> Run:
        """``hear`` gets every line the launcher says, before it goes on."""
        said = io.StringIO()
        names = groups or [f"g{i}" for i in range(config.launch.groups)]
        orders = Orders(config=config, layouts=layouts_of(config, names))
        console = _Heard(said, hear) if hear else Console(said)
        code, reason = LocalRun(orders, warm=self.warm, console=console, requests=Requests()).run()
        return Run(code, reason, RunFolder(Path(config.job.dump_folder)), said.getvalue())


class _Heard(Console):
    def __init__(self, stream: TextIO, hear: Callable[[str], None]) -> None:
        super().__init__(stream)
        self._hear = hear

    def say(self, text: str, *, style: str | None = None) -> None:
        super().say(text, style=style)
        self._hear(text)


def holds(run: Run, *, steps: int) -> None:
    """Exactly once: the ledger of a run that has committed ``steps`` steps. And of its time every second is told."""
    ledger = run.ledger
    assert (ledger.missing, ledger.duplicated, ledger.order_matches, ledger.steps) == (0, 0, True, steps), ledger
    assert read_goodput(run.logs).seconds  # asserts that they sum to the wall time


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
