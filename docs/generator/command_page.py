"""The page of the command line: every command of `amc`, with the text and the options of its `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from amc_agents.cli.commands import app
from amc_agents.markdown import table

INTRODUCTION = """# Command line

Look up a command of `amc`, its options and their defaults. The texts are those of `amc COMMAND --help`. The command
needs the extra `cli`; comparisons and plots also need `bench`:

    pip install 'amc-agents[cli,bench]'

`amc --install-completion` installs completion for your shell, and `amc --show-completion` prints it.

| exit status | meaning |
| ---: | --- |
| 0 | the command succeeded |
| 1 | a check failed, or some runs failed |
| 2 | an error, such as a wrong option or an unreachable server |
| 130 | Ctrl-C; the message says how to continue |

`amc serve` ends with the exit status of vLLM. With `--json`, which every command takes, the result is printed to
stdout as JSON, and everything else to stderr.
"""


def command_page() -> str:
    """Return the page in Markdown."""
    sections = [_section(name, command) for name, command in commands()]
    return INTRODUCTION + "\n" + "\n".join(sections)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the full name and the click command of each command that does something."""
    pending = [("amc", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop(0)
        inner = getattr(command, "commands", {})
        if not inner:
            yield name, command
        pending[:0] = [(f"{name} {last}", each) for last, each in inner.items()]


def _section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    rows = [_row(parameter, context) for parameter in command.params if not getattr(parameter, "hidden", False)]
    example = (command.epilog or "").removeprefix("Example: ")
    paragraphs = re.sub(r"\[/?\w+\]", "", command.help or "").split("\n\n")
    text = "\n\n".join(part for part in paragraphs if part.removeprefix("Example: ") != example)
    parts = [
        f"## {name}",
        text,
        f"```bash\n{example}\n```" if example else "",
        table(["option", ""], rows, "ll") if rows else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(parameter: Any, context: Any) -> list[str]:
    names, text = parameter.get_help_record(context) or (parameter.name, parameter.help or "")
    return [f"`{names}`", re.sub(r"<(\w+)>", r"`<\1>`", text)]
