"""`amc shadow report` and `amc canary report`: join outcomes, and print what a rollout knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from amc_agents.operations.rollout import CanaryReport, ShadowReport

shadow_app = typer.Typer(no_args_is_help=True, help="Search in the background of a served agent (docs/rollout.md).")
canary_app = typer.Typer(no_args_is_help=True, help="Compare two served agents on live calls (docs/rollout.md).")

Folder = Annotated[Path, typer.Argument(help="The folder= of the rollout.")]
Outcomes = Annotated[
    Path | None,
    typer.Option(
        help="CSV file with the columns thread_id and value, joined first. thread_id may also be the id of a run."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@canary_app.command("report", epilog="Example: amc canary report canary --outcomes outcomes.csv")
def canary_report(folder: Folder, outcomes: Outcomes = None, as_json: AsJson = False) -> None:
    """Compare the arms of a canary by their outcomes. Look as often as you like: the interval holds at all times."""
    from amc_agents.operations.rollout.canary_report import read_report

    _print(read_report(folder, _read(outcomes)), as_json)


@shadow_app.command("report", epilog="Example: amc shadow report shadow --outcomes outcomes.csv")
def shadow_report(folder: Folder, outcomes: Outcomes = None, as_json: AsJson = False) -> None:
    """Show how the critic ranks the served answers, and what a canary would cost."""
    from amc_agents.operations.rollout.shadow_report import read_report

    _print(read_report(folder, _read(outcomes)), as_json)


def _read(outcomes: Path | None) -> dict[str, float] | None:
    from amc_agents.operations.importing.logged_runs import read_outcomes

    return None if outcomes is None else read_outcomes(outcomes)


def _print(report: CanaryReport | ShadowReport, as_json: bool) -> None:
    import json

    from amc_agents.cli.printable import echo

    for line in (json.dumps(report.as_plain(), indent=2) if as_json else str(report)).splitlines():
        echo(line)
