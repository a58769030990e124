"""How a config comes to be: defaults < file < command line, and every problem at once.

``load`` is for everything that runs; ``examine`` gives the same with its problems listed instead of raised, for dry
runs. Nothing here looks at the machine: paths are checked when they are used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import checks, unsupported
from configs.fields import Alias
from configs.keys import leaves, mark, nested, value_of
from configs.names import nearest, shipped
from configs.problems import SYNTAX, ConfigError, Problem
from configs.schema import Config
from configs.sources import Given, Read, from_command_line, from_toml, from_tree

__all__ = [
    "Config",
    "ConfigError",
    "Layer",
    "Loaded",
    "Problem",
    "classify",
    "examine",
    "load",
    "parse_text",
    "split_config_file",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config and what was found on the way to it."""

    config: Config
    """Made from all that is good: with problems it is not to be run."""
    given: tuple[Given, ...]
    """What somebody wrote, file first; a key written twice stands once, with the value that counts."""
    problems: tuple[Problem, ...]
    """Unknown keys and bad values."""
    unsupported: tuple[Problem, ...]
    """Keys that would switch on a feature that does not exist yet."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Keys that somebody else's file sets over those of the config: more than the file, less than the command line."""

    keys: Mapping[str, Any]
    """Dotted, or as tables."""
    where: str
    """What to call the place in problems."""


def load(source: str | Path, overrides: Sequence[str] = (), layers: Sequence[Layer] = ()) -> Config:
    """The config in a TOML file, or a shipped one by name, with ``--section.key value`` arguments on top.

    Raises ConfigError with all problems.
    """
    return _valid(examine(source, overrides, layers))


def parse_text(text: str, overrides: Sequence[str] = (), *, where: str = "text") -> Config:
    """The same from TOML text; ``where`` names it in problems. Raises ConfigError."""
    return _valid(_assemble(from_toml(text, where=where), from_command_line(overrides)))


def examine(source: str | Path, overrides: Sequence[str] = (), layers: Sequence[Layer] = ()) -> Loaded:
    """Load and list what is wrong. Raises ConfigError only where there is nothing to read."""
    path = find(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(where=str(path), key="(file)", expected=f"cannot be read: {error}")]) from error
    between = [from_tree(dict(layer.keys), where=layer.where) for layer in layers]
    return _assemble(from_toml(text, where=str(path)), *between, from_command_line(overrides))


def classify(source: str | Path, overrides: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(key, "used" | "no equivalent" | "not supported yet") of each key that was given, for ``--dry-run``.

    Raises ConfigError for unknown keys and bad values only.
    """
    loaded = examine(source, overrides)
    if loaded.problems:
        raise ConfigError(loaded.problems)
    return [(use.key, use.status) for use in unsupported.uses(loaded.config, loaded.given)]


def find(source: str | Path) -> Path:
    """The file of a config given by path or shipped name. Raises ConfigError with the names there are."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    expected = f"expected a TOML file or the name of a shipped config ({', '.join(known)})"
    raise ConfigError([Problem(where=str(source), key="(file)", expected=expected, nearest=nearest(path.stem, known))])


def split_config_file(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take ``--job.config_file FILE`` out of the arguments of ``python -m trainer``: (FILE or None, the rest)."""
    source: str | None = None
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == "__job.config_file":
            source = value if equals else next(words, None)
        else:
            rest.append(word)
    return source, rest


def _valid(loaded: Loaded) -> Config:
    problems = loaded.problems + loaded.unsupported
    if problems:
        raise ConfigError(problems)
    return loaded.config


def _assemble(*sources: Read) -> Loaded:
    """Merge, a later source over an earlier one, build, then judge what keys say together and what does not exist
    yet."""
    problems = [problem for _, found in sources for problem in found]
    merged: dict[str, Given] = {}
    for source, _ in sources:
        problems += _merge(merged, source)
    config = Config.model_validate(nested({key: given.value for key, given in merged.items()}))
    bad = {_meant(problem.key) for problem in problems}
    judged = [] if SYNTAX in bad else checks.findings(config)
    findings = [f for f in judged if not bad.intersection(f.keys)]
    problems += [_placed(f.keys, f.expected, f.nearest, config, merged, found=f.found) for f in findings]
    refused = [
        _placed((r.key,), f"not supported yet: {r.feature}", None, config, merged) for r in unsupported.refusals(config)
    ]
    return Loaded(config=config, given=tuple(merged.values()), problems=tuple(problems), unsupported=tuple(refused))


def _meant(key: str) -> str:
    """The key of ours behind a written one."""
    alias = mark(key, Alias) if key in leaves() else None
    return alias.target if alias else key


def _merge(merged: dict[str, Given], source: Sequence[Given]) -> list[Problem]:
    """Put one source's values over those of earlier ones; two names of one key must agree within a source."""
    problems: list[Problem] = []
    seen: dict[str, Given] = {}
    for given in source:
        first = seen.setdefault(given.key, given)
        if first.value != given.value:
            expected = f"expected the same as {first.written} = {first.value!r}, which is the same setting"
            problems.append(Problem(where=given.where, key=given.written, expected=expected, found=repr(given.value)))
    merged.update(seen)
    return problems


def _placed(
    keys: Sequence[str],
    expected: str,
    hint: str | None,
    config: Config,
    merged: dict[str, Given],
    *,
    found: bool = True,
) -> Problem:
    """A finding over several keys, laid to the first of them that somebody wrote."""
    written = next((merged[key] for key in keys if key in merged), None)
    if written is None:
        written = Given(key=keys[0], value=value_of(config, keys[0]), where="defaults", written=keys[0])
    shown = repr(written.value) if found else ""
    return Problem(where=written.where, key=written.written, expected=expected, found=shown, nearest=hint)
