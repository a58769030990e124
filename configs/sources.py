"""Where the values of a config come from: TOML text and the command line.

Both become a list of ``Given``: a key of the schema, its value and where it was written. What does not fit becomes a
``Problem`` and is left out, so that the rest can still be judged. The command line is argparse's, made from the schema.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tomllib
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from configs.fields import Alias
from configs.keys import RENAMED, adapter, holds, is_list, leaves, mark, sections
from configs.names import nearest, nearest_key
from configs.problems import COMMAND_LINE, SYNTAX, Problem
from configs.wording import expected_of

MISSING = "\0no value"
_FREE_TEXT = ("job.description",)
"""What may have several lines. All other text becomes paths, names and labels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A value somebody wrote."""

    key: str
    """The key of the schema that holds it."""
    value: Any
    where: str
    written: str
    """The key as it was written: another than ``key`` where torchtitan's name is an alias of ours."""


Read = tuple[list[Given], list[Problem]]


def from_toml(text: str, *, where: str) -> Read:
    """The values of a TOML text."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [], [Problem(where=where, key=SYNTAX, expected=f"expected TOML: {error}")]
    return from_tree(tree, where=where)


def from_tree(tree: dict[str, Any], *, where: str) -> Read:
    """The values of TOML tables; a key may also be written with its dots, as one name."""
    given: list[Given] = []
    problems: list[Problem] = []
    for found in _flatten(tree, "", where):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            _accept(found, found.value, given, problems)
    return given, problems


def from_command_line(arguments: Sequence[str]) -> Read:
    """The values of ``--section.key value`` arguments; a later one replaces an earlier one."""
    parsed, extras = _parser().parse_known_args([_with_underscores(argument) for argument in arguments])
    given: list[Given] = []
    problems = list(_judge_extras(extras))
    for key, text in vars(parsed).items():
        found = Given(key=key, value=text, where=COMMAND_LINE, written=key)
        if text == MISSING:
            problems.append(Problem(where=COMMAND_LINE, key=key, expected=f"expected a value: --{key} VALUE"))
        else:
            _accept(found, _decode(key, text), given, problems)
    return given, problems


def _flatten(tree: dict[str, Any], prefix: str, where: str) -> Iterator[Given | Problem]:
    for name, value in tree.items():
        key = prefix + name
        if key in leaves():
            yield Given(key=key, value=value, where=where, written=key)
        elif key not in sections():
            yield unknown(key, where)
        elif isinstance(value, dict):
            yield from _flatten(value, f"{key}.", where)
        else:
            yield Problem(where=where, key=key, expected=f"expected a table [{key}]", found=repr(value))


def unknown(key: str, where: str) -> Problem:
    """The problem of a key that is not in the schema."""
    what = "unknown key" if "." in key else "unknown section"
    known = leaves() if "." in key else sections()
    return Problem(where=where, key=key, expected=what, nearest=RENAMED.get(key) or nearest_key(key, known))


def _accept(found: Given, value: Any, given: list[Given], problems: list[Problem]) -> None:
    """Check one value against its key; keep it under its own name, or say what was expected."""
    try:
        value = adapter(found.key).validate_python(value)
    except ValidationError as error:
        problems.append(_misfit(found, error))
        return
    if found.key not in _FREE_TEXT and _has_control(value):
        expected = "expected text without control characters"
        problems.append(Problem(where=found.where, key=found.written, expected=expected, found=repr(found.value)))
        return
    alias = mark(found.key, Alias)
    if alias is None:
        given.append(dataclasses.replace(found, value=value))
    elif value != alias.unset:
        scaled = value if alias.scale is None else value * alias.scale
        given.append(dataclasses.replace(found, key=alias.target, value=scaled))


def _has_control(value: Any) -> bool:
    """Whether a text, or one in a list, has characters that no path can have or that nobody can see."""
    if isinstance(value, tuple):
        return any(map(_has_control, value))
    return isinstance(value, str) and any(unicodedata.category(letter) == "Cc" for letter in value)


def _misfit(found: Given, error: ValidationError) -> Problem:
    first = error.errors(include_url=False)[0]
    hint = None
    if first["type"] == "literal_error" and isinstance(found.value, str):
        hint = nearest(found.value, (str(v) for v in _choices(found.key)))
    return Problem(
        where=found.where, key=found.written, expected=expected_of([first]), found=repr(found.value), nearest=hint
    )


def _choices(key: str) -> tuple[Any, ...]:
    found: list[Any] = []
    todo = [leaves()[key].annotation]
    while todo:
        for argument in get_args(todo.pop()):
            (found if isinstance(argument, str) else todo).append(argument)
    return tuple(found)


def _decode(key: str, text: str) -> Any:
    """The Python value that a command-line text means for a key; the text itself where it means none."""
    if text.lower() == "none" and holds(key, type(None)):
        return None
    if is_list(key):
        if text.startswith("["):
            with contextlib.suppress(ValueError):
                return json.loads(text)
        return [_number(part.strip()) if key == "launch.devices" else part.strip() for part in text.split(",") if part]
    if holds(key, str):
        return text
    if holds(key, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    return _number(text)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for key in leaves():
        section, _, name = key.rpartition(".")
        flag = holds(key, bool)
        parser.add_argument(f"--{key}", dest=key, nargs="?", const="true" if flag else MISSING)
        if flag:
            parser.add_argument(f"--{section}.no_{name}", dest=key, action="store_const", const="false")
    return parser


def _with_underscores(argument: str) -> str:
    """``--a.b-c=x-y`` as ``--a.b_c=x-y``: both spellings of a key are known to torchtitan's users."""
    if not argument.startswith("--"):
        return argument
    key, equals, value = argument.partition("=")
    return "--" + key[2:].replace("-", "_") + equals + value


def _judge_extras(extras: Sequence[str]) -> Iterator[Problem]:
    """What argparse did not know: unknown keys, each perhaps with its value behind it, and stray words."""
    after_key = False
    for word in extras:
        if word.startswith("--") and len(word) > 2:
            key, equals, _ = word[2:].partition("=")
            yield unknown(key, COMMAND_LINE)
            after_key = not equals
        elif after_key:
            after_key = False
        else:
            yield Problem(where=COMMAND_LINE, key=word, expected="expected --section.key value")
