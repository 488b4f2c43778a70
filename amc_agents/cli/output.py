"""What all commands print with: text whose control characters are escaped, `--json`, and the help of `amc` itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from amc_agents.quoting import printable

if TYPE_CHECKING:
    from amc_agents.cli.console import PlainConsole


def echo(text: str, *, err: bool = False) -> None:
    """Print a text with its control characters escaped. Commands print through this function or `console` only."""
    typer.echo(printable(text), err=err)


AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and everything else on stderr.")
]


def console_beside(as_json: bool, **settings: Any) -> PlainConsole:
    """Return the console for everything but the JSON: stdout, or stderr if stdout is for the JSON."""
    from amc_agents.cli.console import PlainConsole

    return PlainConsole(stderr=as_json, **settings)


def print_json(result: Any) -> None:
    """Print a result as JSON; NaN and infinity become null."""
    from amc_agents.types import plain

    echo(json.dumps(plain(result), indent=1))


class OneScreen(TyperGroup):
    """The commands, a line each, without the panels that surround them in the help of a single command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help where no command is given."""
        if not args and not ctx.resilient_parsing:
            # Typer's `no_args_is_help` only shows help that rich prints.
            echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        options = "|".join(parameter.opts[0] for parameter in self.get_params(ctx))
        lines = [
            f"Usage: {self.name} {{COMMAND|{options}}}",
            f"{self.help} Commands (`amc COMMAND --help`):",
            *(f"  {name:<{width}}  {self.commands[name].short_help}" for name in names),
            self.epilog,
        ]
        formatter.write("\n".join(map(str, lines)) + "\n")
