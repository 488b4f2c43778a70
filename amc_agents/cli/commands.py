"""The commands of `amc`, from demo to canary, and those of installed packages.

A package adds a command by an entry point of the group "amc_agents.commands" that refers to a typer function; the first
line of its docstring is the command's line in `amc --help`, a last paragraph `Example: amc ...` its example. A command
of the library keeps its name.

Commands import what they need when they run, so that `amc --help` answers at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Annotated, Any

import typer

from amc_agents.cli.advise import advise, quick
from amc_agents.cli.calibrate import calibrate
from amc_agents.cli.code import code_app
from amc_agents.cli.compare import bench, demo
from amc_agents.cli.goal import goal
from amc_agents.cli.import_logs import import_logs
from amc_agents.cli.inspecting import canary_app, doctor, report, shadow_app
from amc_agents.cli.output import OneScreen, echo
from amc_agents.cli.own import new
from amc_agents.cli.posterior import posterior_app
from amc_agents.cli.run import estimate, run
from amc_agents.cli.score import score
from amc_agents.cli.serve import serve_app
from amc_agents.cli.train import collect, value
from amc_agents.cli.tune import tune
from amc_agents.cli.verdict import verdict
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt, quoted

GROUP = "amc_agents.commands"
"""Entry-point group for the commands of other packages."""

app = typer.Typer(
    name="amc",
    cls=OneScreen,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Improve a frozen LLM agent at test time.",
    epilog="Exit status: 0; 1 if a check or some runs failed; 2 after an error; 130: Ctrl-C",
)
train_app = typer.Typer(no_args_is_help=True, help="Train a critic on collected trajectories (extra: train).")

_COMMANDS: dict[str, tuple[Callable[..., None], str, str]] = {
    "demo": (demo, "Compare methods in a minute, without API key, server or GPU.", "amc demo --tasks 16"),
    "new": (new, "Write an example agent with tasks, ready for bench.", "amc new my-agent"),
    "bench": (
        bench,
        "Compare methods in a world, or around your own agent.",
        "amc bench my_agent --tasks tasks.jsonl --critic hf:value --out results",
    ),
    "tune": (
        tune,
        "Choose temperature, resampling steps and beta.",
        "amc tune --agent my_agent --tasks tasks.jsonl --critic hf:value --out tuning",
    ),
    "import": (
        import_logs,
        "Turn your agent's logs into a dataset.",
        "amc import threads.sqlite --outcomes outcomes.csv --out data",
    ),
    "advise": (advise, "Ask your logs which method would have helped.", "amc advise data"),
    "collect": (
        collect,
        "Play tasks, and keep the trajectories as a dataset.",
        "amc collect --agent my_agent --tasks tasks.jsonl --out data",
    ),
    "calibrate": (
        calibrate,
        "Fit a critic's values to your own outcomes.",
        "amc calibrate hf:value --data data --out calibrated",
    ),
    "doctor": (doctor, "Check packages, configuration and servers.", "amc doctor --config amc.toml"),
    "run": (
        run,
        "Search with a graph of your own, and watch it.",
        'amc run my_module:graph --input "Hello" --watch',
    ),
    "estimate": (
        estimate,
        "Estimate what a call with N particles costs.",
        'amc estimate my_module:graph --input "Hello" --particles 15',
    ),
    "report": (report, "Write an HTML page of results.", "amc report results --open"),
    "score": (
        score,
        "Score every state of a dataset with a critic.",
        "amc score --data data --critic hf:value --out values.parquet",
    ),
}
for _name, (_function, _short, _example) in _COMMANDS.items():
    app.command(_name, short_help=_short, epilog=f"Example: {_example}")(_function)
train_app.command("value", epilog="Example: amc train value --data data --base MODEL --out value")(value)
train_app.command("goal", epilog="Example: amc train goal --data data --out goal")(goal)
train_app.command("quick", epilog="Example: amc train quick --data data --out critic")(quick)
train_app.command("verdict", epilog="Example: amc train verdict --data data --out verdict")(verdict)
_GROUPS = {
    "train": (train_app, "Train a critic on a dataset: value, goal, verdict or quick."),
    "serve": (serve_app, "Start vLLM with the flags that a model needs."),
    "posterior": (posterior_app, "Show, edit and roll back what an agent believes."),
    "shadow": (shadow_app, "Search in the background of a served agent."),
    "code": (code_app, "Race any coding agent in copies of your repository."),
    "canary": (canary_app, "Compare two served agents on live calls."),
}
for _name, (_group, _short) in _GROUPS.items():
    app.add_typer(_group, name=_name, short_help=_short, epilog=_group.registered_commands[0].epilog)


def _add_installed(point: EntryPoint) -> None:
    """Add a command of an installed package. A package that cannot be loaded breaks only its own command."""
    try:
        command: Any = point.load()
    except Exception as error:
        cause = f"the command {quoted(point.name)} of {quoted(point.value)} cannot be loaded: {excerpt(repr(error))}"

        def broken() -> None:
            raise ConfigurationError(cause)

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(point.name, short_help="(cannot be loaded)", context_settings=anything)(broken)
    else:
        text, _, example = inspect.cleandoc(command.__doc__ or "").partition("\n\nExample: ")
        epilog = f"Example: {example}" if example else None
        app.command(point.name, help=text, short_help=text.partition("\n")[0], epilog=epilog)(command)


for _point in entry_points(group=GROUP):
    if _point.name not in {*_COMMANDS, *_GROUPS}:
        _add_installed(_point)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        echo(f"amc-agents {version('amc-agents')}")
    except PackageNotFoundError:
        echo("amc-agents, run from its sources without being installed")
    raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
