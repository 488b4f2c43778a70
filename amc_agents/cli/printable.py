"""Print untrusted text on a terminal without executing its control characters."""

from __future__ import annotations

import typer

from amc_agents.quoting import printable


def echo(text: str, *, err: bool = False) -> None:
    """Print a text with its control characters escaped. Commands print through this function or `console` only."""
    typer.echo(printable(text), err=err)
