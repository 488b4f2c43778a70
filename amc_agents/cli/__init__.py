"""The command line, `amc`.

This module imports without typer and rich, so that `amc` can name the missing extra.
"""

from __future__ import annotations

import sys
from importlib import import_module

from amc_agents.cli import interrupted
from amc_agents.errors import AmcError, MissingExtra
from amc_agents.files import cause_and_remedy
from amc_agents.quoting import printable as escaped


def main() -> None:
    """Run the command line; an error of the library or of the file system is one line and exit status 2."""
    try:
        _require("typer")
        _require("rich")
        import_module("amc_agents.cli.commands").app()
    except SystemExit as stop:
        if stop.code == interrupted.STATUS:
            _print_error(interrupted.advice(sys.argv[1:]))
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
