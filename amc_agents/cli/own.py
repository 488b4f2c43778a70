"""The user's own agent: `amc new`, and what `amc bench`, `amc tune` and `amc collect` share about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, echo, print_json
from amc_agents.errors import ConfigurationError

if TYPE_CHECKING:
    from amc_agents.bench.own.plan import OwnPlan
    from amc_agents.cli.console import PlainConsole
    from amc_agents.smc import Adaptive

OWN_AGENT = "Your own agent"
Agent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="MODULE[:NAME]",
        help="Your own agent instead of a world: a module with make_agent(temperature) and score(state), or a compiled "
        "graph in it. Needs --tasks FILE. `amc new` writes one.",
        rich_help_panel=OWN_AGENT,
    ),
]
Concurrent = Annotated[
    int, typer.Option(min=1, help="Runs in progress at the same time in each process.", rich_help_panel=OWN_AGENT)
]


def number_or_file(text: Any) -> int | Path:
    """Read the value of --tasks."""
    if isinstance(text, int | Path):
        return text
    if not text.lstrip("-").isdecimal():
        return Path(text)
    if int(text) < 1:
        raise typer.BadParameter(f"{text} is not in the range x>=1.")
    return int(text)


NumberOrFile = Annotated[
    Any,
    typer.Option(
        parser=number_or_file,
        metavar="N|FILE",
        help="N: number of generated tasks, the same ones every time. FILE: tasks for your own agent, a JSON object a "
        "line with id and instruction.",
    ),
]


def own_plan(
    agent: str,
    tasks: int | Path,
    console: PlainConsole,
    *,
    split: str,
    first: int = 0,
    seeds: int = 1,
    n_particles: int | Adaptive = 15,
    critic: str | None = None,
    config: Path | None = None,
    refused: Mapping[str, Any],
) -> OwnPlan:
    """Return the checked plan of an own agent, and print what the user should know before it runs.

    Args:
        agent: `module` or `module:object`.
        tasks: the value of --tasks.
        console: where to print.
        split: "train", "test" or "all".
        first: number of the first task of the split.
        seeds: number of repetitions.
        n_particles: N.
        critic: the critic, if one is named.
        config: the configuration file, for its prices.
        refused: options of the registered worlds by name; None or False: not given.

    Raises:
        ConfigurationError: the agent, the tasks or an option is wrong.
    """
    from amc_agents.bench.own.plan import OwnPlan
    from amc_agents.bench.own.tasks import read_tasks
    from amc_agents.config import configured

    if not isinstance(tasks, Path):
        raise ConfigurationError(f"--agent {agent} needs your tasks: --tasks FILE, a JSON object a line")
    given = [name for name, value in refused.items() if value not in (None, False)]
    if given:
        raise ConfigurationError(f"{', '.join(given)} cannot be combined with --agent: leave it out")
    plan = OwnPlan(
        agent, tasks, split=split, first=first, seeds=tuple(range(seeds)),  # type: ignore[arg-type]
        n_particles=n_particles, critic=critic, prices=configured(config).price_list(),
    )  # fmt: skip
    ending = plan.own.check()
    console.print(f"{plan.n_tasks} of {len(read_tasks(tasks))} tasks: split {split}.", highlight=False)
    if ending:
        console.print(
            f"Commit tools never run here: a call of {', '.join(ending)} ends the trajectory. A stand-in result lets "
            f'the agent go on: amc_options = {{"tools": {{"{ending[0]}": Deferred("...")}}}}',
            soft_wrap=True,
        )
    if plan.own.temperature_is_fixed:
        console.print(f"{agent} is a compiled graph: every method samples at the temperature that it was built with.")
    return plan


def number_of_tasks(tasks: int | Path) -> int:
    """Return the number of tasks of a registered world."""
    if isinstance(tasks, Path):
        raise ConfigurationError(f"--tasks {tasks}: expected a number of tasks; a file needs your own agent (--agent)")
    return tasks


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
