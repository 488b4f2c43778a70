"""The commands of `amc`, from demo to canary.

Commands import what they need when they run, so that `amc --help` answers at once.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from amc_agents.cli.calibrate import calibrate
from amc_agents.cli.compare import bench, demo
from amc_agents.cli.doctor import doctor
from amc_agents.cli.estimate import estimate
from amc_agents.cli.explore import explore
from amc_agents.cli.goal import goal
from amc_agents.cli.import_logs import import_logs
from amc_agents.cli.new import new
from amc_agents.cli.posterior import posterior_app
from amc_agents.cli.printable import echo
from amc_agents.cli.report import report
from amc_agents.cli.rollout import canary_app, shadow_app
from amc_agents.cli.score import score
from amc_agents.cli.serve import serve_app
from amc_agents.cli.train import collect, value
from amc_agents.cli.tune import tune
from amc_agents.cli.verdict import verdict

app = typer.Typer(
    name="amc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Improve the decisions of a frozen LLM agent at test time, guided by a small critic. "
    "Start with [bold]amc demo[/bold]: it needs no API key, server or GPU.",
)
train_app = typer.Typer(no_args_is_help=True, help="Train a critic on collected trajectories (extra: train).")

app.command()(demo)
app.command()(new)
app.command()(bench)
app.command()(tune)
app.command("import")(import_logs)
app.command()(collect)
app.command()(calibrate)
app.command()(doctor)
app.command()(estimate)
app.command()(explore)
app.command()(report)
app.command()(score)
app.add_typer(train_app, name="train")
app.add_typer(serve_app, name="serve")
app.add_typer(posterior_app, name="posterior")
app.add_typer(shadow_app, name="shadow")
app.add_typer(canary_app, name="canary")
train_app.command("value")(value)
train_app.command("goal")(goal)
train_app.command("verdict")(verdict)


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
