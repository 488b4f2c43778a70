"""`--json`: the result of a command as JSON on stdout, and everything else on stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.printable import echo

if TYPE_CHECKING:
    from amc_agents.cli.console import PlainConsole

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and everything else on stderr.")
]


def console_beside(as_json: bool, **settings: Any) -> PlainConsole:
    """Return the console for everything but the JSON: stdout, or stderr if stdout is for the JSON."""
    from amc_agents.cli.console import PlainConsole

    return PlainConsole(stderr=as_json, **settings)


def print_json(result: Any) -> None:
    """Print a result as JSON; NaN and infinity become null."""
    from amc_agents.plain import plain

    echo(json.dumps(plain(result), indent=1))
