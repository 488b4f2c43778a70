"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

import typer

from amc_agents.quoting import printable


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that others may have written: the one way to do so in the command line, beside `console`."""
    typer.echo(printable(text), err=err)
