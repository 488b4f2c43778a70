"""The help of `amc` itself, which fits a terminal of 24 lines by 80 columns."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from amc_agents.cli.printable import echo


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
            self.help,
            "Commands, with options and an example in `amc COMMAND --help`:",
            *(f"  {name:<{width}}  {self.commands[name].short_help}" for name in names),
            self.epilog,
        ]
        formatter.write("\n".join(map(str, lines)) + "\n")
