"""A scenario is read from its file, and everything that is wrong with it is told at once.

What does not fit is told and left out, so that the rest can still be judged: the tables key by key, each fault by
itself, the keys of the config, then each fault in the run it is to happen in. Faults and cases are counted from 1, as
people count; a case that has a name is called by it. Called by the ``chaos`` commands.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from configs.fields import Section
from configs.load import ConfigError, Layer, examine
from configs.names import nearest
from configs.problems import SYNTAX, Problem
from configs.schema import Config
from configs.wording import expected_of
from ops.chaos.fits import Misfit, misfits, misfits_of_matrix, misplaced
from ops.chaos.scenario import Bounds, Case, Fault, Matrix, Scenario, find
from ops.chaos.traces import read_trace

Table = TypeVar("Table", bound=Section)
RESERVED = ("run", "undisturbed")
"""Beginnings of the names that the folders of a scenario's own runs have."""
OWN = {
    "job.dump_folder": "phalanx chaos run --folder says where runs lie",
    "chaos.failpoints": "the faults say what goes wrong",
    "chaos.scenario": "the faults say what goes wrong",
}
"""Config keys that a scenario decides in other ways."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TREES = ("faults", "cases", "limits", "matrix")
"""Tables inside tables, which are read one by one."""


def load(source: str, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a file, or a shipped one, fit for a run with these config keys on the command line. Raises
    ConfigError with all problems."""
    path = find(source)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = Problem(where=str(path), key=SYNTAX, expected=f"expected TOML: {error}")
        raise ConfigError([problem]) from error
    reader = _Reader(path)
    scenario = reader.scenario(tree)
    reader.judge_runs(scenario, overrides)
    if reader.problems:
        raise ConfigError(dict.fromkeys(reader.problems))
    return scenario


def config_of(scenario: Scenario, path: Path) -> str:
    """What ``configs.load`` is to load for a scenario that lies at ``path``: a shipped name, or a file beside it."""
    beside = path.parent / scenario.config
    return str(beside) if beside.suffix == ".toml" else scenario.config


def layers(scenario: Scenario, case: Case | None, *, where: str) -> tuple[Layer, ...]:
    """The config keys that a run of a scenario has of its own."""
    own = () if case is None else (Layer(case.keys, f"{where}: cases.{case.name}.keys"),)
    return (Layer(scenario.keys, f"{where}: keys"), *own)


class _Reader:
    """Reads one file; ``problems`` is what it found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = str(path)
        self._bad: dict[str, set[str]] = {}
        """Keys of a table that are told of already, or were not written though meant."""
        self._names: dict[int, str] = {}
        """What each fault is called in problems, by identity."""
        self.problems: list[Problem] = []

    def scenario(self, tree: dict[str, Any]) -> Scenario:
        """All that is good in it."""
        head = self._table(Scenario, {k: v for k, v in tree.items() if k not in TREES}, at="", blank={"about": ""})
        matrix = self._matrix(tree.get("matrix"))
        cases = tuple(self._case(each, at) for each, at in self._each(tree, "cases", at=""))
        found = head.model_copy(
            update={
                "faults": self._faults(tree, at=""),
                "cases": cases,
                "matrix": matrix,
                "limits": self._limits(tree, at="") or Bounds(),
            }
        )
        if not any(tree.get(key) for key in ("faults", "cases", "matrix")) and not self._meant("", TREES):
            self._tell("faults", "expected faults, cases or a matrix: nothing goes wrong here")
        faults = [*found.faults, *(fault for case in found.cases for fault in case.faults)]
        actions = {*(fault.do for fault in faults), *(matrix.actions if matrix is not None else ())}
        if found.compare and "nan" in actions:
            self._tell("compare", "a NaN skips a step, and the undisturbed run skips none: expected compare = false")
        for case in found.cases:
            if not _NAME.fullmatch(case.name) or case.name.startswith(RESERVED):
                expected = f"expected letters, digits, -, _ and ., and not {' or '.join(RESERVED)}: it names a folder"
                self._tell("cases", expected, found=case.name)
            if not case.faults:
                self._tell(f"cases.{case.name}", "expected faults: nothing goes wrong here")
        names = [case.name for case in found.cases]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            self._tell("cases", "two cases have the same name", found=name)
        return found

    def judge_runs(self, scenario: Scenario, overrides: Sequence[str]) -> None:
        """Each run's config, and the faults in it."""
        base = config_of(scenario, self._path)
        own = (None,) if scenario.faults or scenario.matrix or not scenario.cases else ()
        for case in (*own, *scenario.cases):
            try:
                loaded = examine(base, overrides, layers(scenario, case, where=self._where))
            except ConfigError as error:  # there is no such config
                first = error.problems[0]
                self._tell("config", first.expected, found=scenario.config, near=first.nearest)
                return
            self.problems += [*loaded.problems, *loaded.unsupported]
            own_keys = case.keys if case is not None else {}
            for key in sorted({*_dotted(scenario.keys), *_dotted(own_keys)}.intersection(OWN)):
                self._tell(f"keys.{key}", f"expected it to be left out: {OWN[key]}")
            if case is None and scenario.matrix is not None and loaded.config.launch.groups < 2:
                self._tell("matrix", "expected at least launch.groups = 2: it strikes g0 and g1")
            for fault in scenario.faults if case is None else case.faults:
                self._judge(fault, misplaced(fault, loaded.config), at=self._names[id(fault)])
                self._judge_trace(fault, loaded.config)

    def _judge_trace(self, fault: Fault, config: Config) -> None:
        if fault.trace is not None:
            _, problems = read_trace(self._path.parent / fault.trace, groups=config.launch.groups)
            self.problems += problems

    def _case(self, tree: object, at: str) -> Case:
        name = tree.get("name") if isinstance(tree, dict) else None
        at = f"cases.{name}" if isinstance(name, str) else at
        own = {k: v for k, v in tree.items() if k not in TREES} if isinstance(tree, dict) else tree
        case = self._table(Case, own, at=at, blank={"name": at.removeprefix("cases.")})
        inside = tree if isinstance(tree, dict) else {}
        return case.model_copy(update={"faults": self._faults(inside, at=at), "limits": self._limits(inside, at=at)})

    def _faults(self, tree: dict[str, Any], *, at: str) -> tuple[Fault, ...]:
        found = []
        for each, name in self._each(tree, "faults", at=at):
            fault = self._table(Fault, each, at=name)
            self._names[id(fault)] = name
            if isinstance(each, dict):
                self._judge(fault, misfits(fault), at=name)
            found.append(fault)
        return tuple(found)

    def _limits(self, tree: dict[str, Any], *, at: str) -> Bounds | None:
        return self._table(Bounds, tree["limits"], at=_joined(at, "limits")) if "limits" in tree else None

    def _matrix(self, tree: object) -> Matrix | None:
        if tree is None:
            return None
        matrix = self._table(Matrix, tree, at="matrix", blank={"actions": ()})
        self._judge(matrix, misfits_of_matrix(matrix), at="matrix")
        return matrix

    def _each(self, tree: dict[str, Any], key: str, *, at: str) -> list[tuple[Any, str]]:
        """The tables of a list, each with its name."""
        found = tree.get(key, [])
        if isinstance(found, list):
            return [(each, f"{_joined(at, key)}[{number}]") for number, each in enumerate(found, 1)]
        self._tell(_joined(at, key), f"expected a list of tables [[{key}]]", found=found)
        return []

    def _table(self, model: type[Table], tree: object, *, at: str, blank: dict[str, Any] | None = None) -> Table:
        """What is good in a table. ``blank`` stands for keys that must be written and are not."""
        bad = self._bad.setdefault(at, set())
        good = dict(tree) if isinstance(tree, dict) else {}
        if not isinstance(tree, dict):
            self._tell(at, "expected a table", found=tree)
            return model.model_validate(blank or {})
        try:
            return model.model_validate(good)
        except ValidationError as error:
            by_key: dict[str, list[ErrorDetails]] = {}
            for detail in error.errors(include_url=False):
                by_key.setdefault(str(detail["loc"][0]), []).append(detail)
        for key, details in by_key.items():
            bad.add(key)
            self._misfit(model, key, details, good, at=at)
            good.pop(key, None)
        return model.model_validate({**(blank or {}), **good})

    def _misfit(
        self, model: type[Section], key: str, details: list[ErrorDetails], tree: dict[str, Any], *, at: str
    ) -> None:
        known = (*model.model_fields,)
        kind = details[0]["type"]
        if kind == "extra_forbidden":
            near = nearest(key, known)
            self._bad[at].add(near or key)
            self._tell(_joined(at, key), "unknown key", near=near)
        elif kind == "missing":
            self._tell(_joined(at, key), "expected this key, which is missing")
        else:
            choices = str(details[0].get("ctx", {}).get("expected", "")).replace("'", "").replace(" or ", ", ")
            near = nearest(str(tree[key]), choices.split(", "))
            self._tell(_joined(at, key), expected_of(details), found=tree[key], near=near)

    def _judge(self, table: Section, found: Iterable[Misfit], *, at: str) -> None:
        for misfit in found:
            if self._meant(at, (misfit.key, *misfit.also)):
                continue
            written = None if misfit.absent else getattr(table, misfit.key)
            self._tell(_joined(at, misfit.key), misfit.expected, found=written, near=misfit.nearest(written))

    def _meant(self, at: str, keys: Iterable[str]) -> bool:
        """Whether one of the keys of a table is told of already."""
        return not self._bad.get(at, set()).isdisjoint(keys)

    def _tell(self, key: str, expected: str, *, found: object = None, near: str | None = None) -> None:
        shown = "" if found is None else repr(_plain(found))
        self.problems.append(Problem(where=self._where, key=key, expected=expected, found=shown, nearest=near))


def _dotted(keys: dict[str, Any]) -> Iterator[str]:
    """The names of config keys that are written dotted, or in the table of their section."""
    for key, value in keys.items():
        yield from (f"{key}.{inner}" for inner in value) if isinstance(value, dict) else (key,)


def _joined(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _plain(value: object) -> object:
    """As it was written."""
    if isinstance(value, str):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
