"""The ``phalanx`` command: from the arguments to an exit code.

Every way a command can end becomes a code of the contract here and, with ``--json``, one object on stdout.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from collections.abc import Sequence

from configs.load import ConfigError
from configs.words import Exit, ExitRequest
from ops.cli import dispatch, usage_result
from ops.commands import COMMANDS
from ops.console import Console, reserved_stdout
from ops.result import Result, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    with reserved_stdout(as_json) as stdout:
        outcome = _outcome(words, Console(sys.stdout), as_json=as_json)
        with contextlib.suppress(BrokenPipeError):  # the reader has gone; the code still tells
            if as_json:
                print(json.dumps({"exit": int(outcome.code), **outcome.data}, default=str), file=stdout, flush=True)
            elif outcome.text:
                good = outcome.code in (Exit.DONE, Exit.DRAINED)
                print(outcome.text, file=sys.stdout if good else sys.stderr, flush=True)
    return int(outcome.code)


def _outcome(words: list[str], console: Console, *, as_json: bool) -> Result:
    """Run the command; whatever it raises becomes a result."""
    try:
        return _help_as_result(words, console) if as_json else dispatch(COMMANDS, words, console)
    except UsageError as error:
        return usage_result(error)
    except ConfigError as error:
        problems = [str(problem) for problem in error.problems]
        return Result(code=Exit.BAD_CONFIG, text=str(error), data={"error": str(error), "problems": problems})
    except ExitRequest as error:
        return Result(code=error.code, text=f"phalanx: {error.reason}", data={"error": error.reason})
    except KeyboardInterrupt:
        return Result(code=Exit.INTERRUPTED, text="interrupted", data={"error": "interrupted"})
    except Exception as error:  # noqa: BLE001 - the process's edge: a script must get its object and its code
        traceback.print_exc()
        return Result(code=Exit.CHECK_FAILED, text="", data={"error": f"{type(error).__name__}: {error}"})


def _help_as_result(words: list[str], console: Console) -> Result:
    """argparse prints help and ends the process; with ``--json`` the text belongs into the object."""
    text = io.StringIO()
    try:
        if {"-h", "--help"} & set(words):
            with contextlib.redirect_stdout(text):
                return dispatch(COMMANDS, words, console)
        return dispatch(COMMANDS, words, console)
    except SystemExit as end:
        return Result(code=int(end.code or 0), data={"help": text.getvalue()})


if __name__ == "__main__":
    raise SystemExit(main())
