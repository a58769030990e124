"""How is the command line of ``phalanx`` read?

Commands are rows of a table (``ops.commands``): a path of words, a help text with an example, and the module that does
it. A row without a module is known by name and refused. Config keys (``--section.key value``) are taken out first, so
that they may stand anywhere; what they mean is the config loader's business.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import NoReturn

from configs.names import nearest
from configs.words import Exit
from ops.console import Console
from ops.result import Result, UsageError
from ops.typos import refuse_strays, refuse_unknown_command, refuse_unknown_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command. ``module`` offers ``arguments(parser)`` and ``run(options, console) -> Result``."""

    path: tuple[str, ...]
    does: str
    example: str
    module: str | None = None
    takes_keys: bool = False

    @property
    def name(self) -> str:
        return " ".join(self.path)


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of ending the process, and knows no abbreviations."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """With the nearest choice. argparse has no public place for that."""
        choices = list(map(str, action.choices or ()))
        if action.choices is not None and str(value) not in choices:
            near = nearest(str(value), choices)
            hint = f" (did you mean {near}?)" if near else ""
            raise argparse.ArgumentError(action, f"expected one of {', '.join(choices)}, found {str(value)!r}{hint}")

    @property
    def known_options(self) -> frozenset[str]:
        """Every ``--option`` that it knows."""
        return frozenset(self._option_string_actions)


def dispatch(commands: Sequence[Command], argv: Sequence[str], console: Console) -> Result:
    """Run what the arguments ask for. Raises UsageError, and whatever the command raises."""
    words = [word for word in argv if word != "--json"]
    command = find(commands, words)
    if command is None:
        refuse_unknown_command([c.path for c in commands], words)
    if command is not None and command.module is None and not {"-h", "--help"} & set(words):
        raise UsageError(f"`phalanx {command.name}` does not exist yet ({command.does})")
    overrides: list[str] = []
    if command is not None and command.takes_keys:
        words, overrides = split_keys(words)
    parser = build_parser(commands)
    if command is not None:
        known = _parser_of(parser, command.path).known_options
        refuse_unknown_options(words, overrides, known=known, name=command.name)
    options, strays = parser.parse_known_args(words)
    refuse_strays(strays, argv, overrides, name=command.name if command is not None else "")
    options.overrides = overrides
    chosen: Command | None = getattr(options, "command", None)
    if chosen is None or chosen.module is None:
        raise UsageError("no command given (see phalanx --help)")
    run: Callable[[argparse.Namespace, Console], Result] = importlib.import_module(chosen.module).run
    return run(options, console)


def find(commands: Sequence[Command], words: Sequence[str]) -> Command | None:
    """The command that the first words name, if they name one."""
    return next((c for c in commands if tuple(words[: len(c.path)]) == c.path), None)


def build_parser(commands: Sequence[Command]) -> Parser:
    """The parser of all commands."""
    top = Parser(
        prog="phalanx",
        description="Train large language models on machines that may vanish at any moment.",
        epilog="example: phalanx launch demo",
        allow_abbrev=False,
    )
    top.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    groups: dict[tuple[str, ...], argparse._SubParsersAction[Parser]] = {(): top.add_subparsers(metavar="COMMAND")}
    for command in commands:
        head = command.path[:-1]
        if head not in groups:
            parent = groups[()].add_parser(
                head[0], help=_sorts(commands, head), epilog=f"example: {command.example}", allow_abbrev=False
            )
            groups[head] = parent.add_subparsers(metavar="WHAT", required=True)
        _add(groups[head], command)
    return top


def _add(group: argparse._SubParsersAction[Parser], command: Command) -> None:
    later = "" if command.module else " (does not exist yet)"
    keys = "\nAny key of the config can be given: --section.key value" if command.takes_keys else ""
    parser = group.add_parser(
        command.path[-1],
        help=command.does + later,
        description=command.does + later + keys,
        epilog=f"example: {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    parser.set_defaults(command=command)
    if command.module is not None:
        importlib.import_module(command.module).arguments(parser)


def _parser_of(parser: Parser, path: tuple[str, ...]) -> Parser:
    """The parser of one command."""
    for word in path:
        (children,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = children.choices[word]
    return parser


def _sorts(commands: Sequence[Command], head: tuple[str, ...]) -> str:
    return ", ".join(c.path[-1] for c in commands if c.path[:-1] == head)


def split_keys(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(other words, config keys with their values). A key is ``--`` and a name with a dot; the next word is its value
    unless it is an option, or the key is a switch and the word neither true nor false."""
    rest: list[str] = []
    keys: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not (word.startswith("--") and "." in word.partition("=")[0]):
            rest.append(word)
            continue
        keys.append(word)
        if "=" not in word and waiting and not waiting[0].startswith("--") and _takes(word, waiting[0]):
            keys.append(waiting.pop(0))
    return rest, keys


def _takes(key: str, word: str) -> bool:
    """Whether ``word`` is the value of ``key``."""
    from configs.keys import holds, leaves

    name = key[2:].replace("-", "_")
    section, _, last = name.rpartition(".")
    if name not in leaves() and last.startswith("no_") and f"{section}.{last[3:]}" in leaves():
        return False
    is_switch = name in leaves() and holds(name, bool)
    return not is_switch or word.lower() in ("true", "false")


def usage_result(error: UsageError) -> Result:
    """What a command line that cannot be understood comes to."""
    return Result(code=Exit.BAD_CONFIG, text=f"phalanx: {error}", data={"error": str(error)})
