"""The command line, `amc`.

This module imports without typer and rich, so that `amc` can name the missing extra.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from amc_agents.errors import AmcError, MissingExtra
from amc_agents.files import cause_and_remedy
from amc_agents.quoting import printable as escaped

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report it."""
_FLAG_OF = {
    "bench": "--resume", "explore": "--resume", "train": "--resume",
    "tune": None, "collect": None, "import": None, "score": None,
}  # fmt: skip
"""Command -> the flag with which it goes on; None: the same command does."""


def main() -> None:
    """Run the command line; an error of the library or of the file system is one line and exit status 2."""
    try:
        _require("typer")
        _require("rich")
        import_module("amc_agents.cli.commands").app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            _print_error(advice_after_interrupt(sys.argv[1:]))
        raise
    except AmcError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {cause_and_remedy(error)}")


def _require(package: str) -> None:
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or package, "cli") from error


def _fail(message: str) -> None:
    _print_error(message)
    sys.exit(2)


def _print_error(message: str) -> None:
    sys.stderr.write(escaped(f"amc: {message}\n"))


def advice_after_interrupt(arguments: Sequence[str]) -> str:
    """Say how to go on with an interrupted command.

    >>> advice_after_interrupt(["bench", "--out", "my results"])
    "interrupted; finished results are kept. Go on with: amc bench --out 'my results' --resume"

    Args:
        arguments: of the command line, without the program.
    """
    command = arguments[0] if arguments else ""
    if command not in _FLAG_OF:
        return "interrupted"
    flag = _FLAG_OF[command]
    added = [flag] if flag is not None and flag not in arguments else []
    return f"interrupted; finished results are kept. Go on with: {shlex.join(['amc', *arguments, *added])}"
