"""`amc new`: write the files of an agent that runs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amc_agents.cli.json_output import AsJson, print_json
from amc_agents.cli.printable import echo


def new(
    folder: Annotated[Path, typer.Argument(help="New folder, such as my-agent; its module is then my_agent.")],
    tasks: Annotated[int, typer.Option(min=4, help="Number of example tasks; every second one is a test task.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Write an example agent with its tasks and a test, to be replaced part by part. It runs without a key.

    Example: amc new my-agent
    """
    from amc_agents.bench.own.skeleton import module_name, write_skeleton

    written = write_skeleton(folder, tasks)
    module = module_name(folder)
    if as_json:
        return print_json({"module": module, "files": written})
    echo("Written:")
    for path in written:
        echo(f"  {path}")
    echo(f"Next: cd {folder} && amc bench {module} --tasks tasks.jsonl --out results")
