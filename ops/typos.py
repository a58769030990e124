"""What was mistyped on a command line? Every word that means nothing, at once, each with the nearest name there is.

argparse tells of one word, and blames those behind it. Called by ``ops.cli`` before and after it has parsed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from configs.names import nearest
from configs.problems import COMMAND_LINE, ConfigError, Problem
from ops.result import UsageError


def refuse_unknown_command(paths: Sequence[tuple[str, ...]], words: Sequence[str]) -> None:
    """Raises UsageError where the first words name no command. Options alone are left to argparse."""
    if not words or words[0].startswith("-"):
        return
    heads = dict.fromkeys(path[0] for path in paths)
    if words[0] not in heads:
        # `phalanx verify`: the second word of a command, said alone
        last = [" ".join(path) for path in paths if path[-1] == words[0]]
        _refuse(words[0], last[0] if last else nearest(words[0], heads), list(heads))
    seconds = [path[1] for path in paths if path[0] == words[0] and len(path) > 1]
    if seconds and len(words) > 1 and not words[1].startswith("-") and words[1] not in seconds:
        near = nearest(words[1], seconds)
        _refuse(" ".join(words[:2]), near and f"{words[0]} {near}", seconds)


def _refuse(found: str, near: str | None, known: Sequence[str]) -> None:
    hint = f" (did you mean {near}?)" if near else f"; there are {', '.join(known)}"
    raise UsageError(f"no command is called {found!r}{hint}")


def refuse_unknown_options(words: Sequence[str], keys: Sequence[str], *, known: Collection[str], name: str) -> None:
    """``words`` and config ``keys`` of command ``name``, which has the options ``known``. Raises ConfigError with every
    option that there is none of, and every bad key beside it."""
    found = [*_options(words, known=known, name=name)]
    if found:
        raise ConfigError([*found, *_bad_keys(keys)])


def refuse_strays(strays: Sequence[str], argv: Sequence[str], keys: Sequence[str], *, name: str) -> None:
    """Words that are left over. One that stands behind a switch was meant to be its value. Raises ConfigError."""
    if strays:
        before = {word: key for key, word in itertools.pairwise(argv) if key in keys and key.startswith("--")}
        found = [_stray(word, before.get(word), name=name) for word in strays]
        raise ConfigError([*found, *_bad_keys(keys)])


def _stray(word: str, switch: str | None, *, name: str) -> Problem:
    if switch is not None:
        expected = "expected true or false"
        return Problem(where=COMMAND_LINE, key=switch.removeprefix("--"), expected=expected, found=repr(word))
    what = "unknown option" if word.startswith("-") else "expected nothing more"
    return Problem(where=COMMAND_LINE, key=word, expected=f"{what} (see {_called(name)} --help)")


def _options(words: Sequence[str], *, known: Collection[str], name: str) -> Iterator[Problem]:
    for word in words:
        if word == "--":
            return
        option = word.partition("=")[0]
        if option.startswith("--") and option not in known:
            near = nearest(option, known)
            expected = "unknown option" if near else f"unknown option (see {_called(name)} --help)"
            yield Problem(where=COMMAND_LINE, key=option, expected=expected, nearest=near)


def _called(name: str) -> str:
    return f"phalanx {name}" if name else "phalanx"


def _bad_keys(keys: Sequence[str]) -> Sequence[Problem]:
    from configs.sources import from_command_line  # heavy: the schema

    return from_command_line(keys)[1]
