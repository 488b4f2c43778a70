"""Commands that look at what is there: `amc doctor`, `amc report`, `amc shadow report` and `amc canary report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amc_agents.cli.output import AsJson, console_beside, echo, print_json

if TYPE_CHECKING:
    from amc_agents.operations.doctor import Check
    from amc_agents.operations.rollout import CanaryReport, ShadowReport


STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim"}


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file to check.", envvar="AMC_CONFIG")
    ] = None,
    critic: Annotated[
        str | None, typer.Option(help="Critic to check. Default: the critic of the config file.", envvar="AMC_CRITIC")
    ] = None,
    policy_url: Annotated[
        str | None, typer.Option(help="URL of the policy's server, such as http://host:8000.")
    ] = None,
    policy_model: Annotated[str | None, typer.Option(help="Name of the policy on its server.")] = None,
    policy_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the policy's API key. Default: VLLM_API_KEY.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check packages, config file, critic, policy and embeddings; the exit status is 1 if a check fails.

    Real servers are called: a judge or a policy that costs money gets a few short requests.
    """
    import asyncio
    from dataclasses import asdict

    from amc_agents.operations.doctor import Patient, examine

    policy = {"base_url": policy_url, "model": policy_model, "key_env": policy_key_env}
    patient, read = Patient.read(config, critic, policy)
    checks = [read, *asyncio.run(examine(patient))]
    failed = sum(check.state == "failed" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        _print_table(checks)
    raise typer.Exit(1 if failed else 0)


def _print_table(checks: list[Check]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from amc_agents.cli.console import PlainConsole

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("details, and what to do", overflow="fold")
    for check in checks:
        # As `Text`, so that brackets are not read as markup.
        details = Text(check.detail)
        if check.advice:
            details.append(f"\n-> {check.advice}", style="yellow" if check.state == "failed" else "dim")
        table.add_row(check.name, Text(check.state, style=STYLES[check.state]), details)
    console = PlainConsole()
    console.print(table)
    count = {state: sum(check.state == state for check in checks) for state in STYLES}
    console.print(f"{count['ok']} ok, {count['failed']} failed, {count['skipped']} skipped", highlight=False)


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of amc bench, demo, tune, import, collect, shadow or canary, or of a run that run.save wrote."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The page. Default: report.html in the folder.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML page of results: tables, charts, the genealogy of a run, costs and failures."""
    from amc_agents.files import replace_file
    from amc_agents.operations.report import report_page

    page, path = report_page(folder), out or folder / "report.html"
    replace_file(path, page)
    n_bytes = len(page.encode())
    console_beside(as_json).print(f"Written: {path} ({n_bytes / 1e6:.1f} MB)", soft_wrap=True)
    if as_json:
        print_json({"page": path, "bytes": n_bytes})
    if open_:
        typer.launch(str(path.resolve()))


shadow_app = typer.Typer(no_args_is_help=True, help="Search in the background of a served agent (docs/rollout.md).")
canary_app = typer.Typer(no_args_is_help=True, help="Compare two served agents on live calls (docs/rollout.md).")

RolloutFolder = Annotated[Path, typer.Argument(help="The folder= of the rollout.")]
OutcomesFile = Annotated[
    Path | None,
    typer.Option(
        help="CSV file with the columns thread_id and value, joined first. thread_id may also be the id of a run."
    ),
]
ReportAsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@canary_app.command("report", epilog="Example: amc canary report canary --outcomes outcomes.csv")
def canary_report(folder: RolloutFolder, outcomes: OutcomesFile = None, as_json: ReportAsJson = False) -> None:
    """Compare the arms of a canary by their outcomes. Look as often as you like: the interval holds at all times."""
    from amc_agents.operations.rollout.canary_report import read_report

    _print_rollout(read_report(folder, _read_outcomes(outcomes)), as_json)


@shadow_app.command("report", epilog="Example: amc shadow report shadow --outcomes outcomes.csv")
def shadow_report(folder: RolloutFolder, outcomes: OutcomesFile = None, as_json: ReportAsJson = False) -> None:
    """Show how the critic ranks the served answers, and what a canary would cost."""
    from amc_agents.operations.rollout.shadow_report import read_report

    _print_rollout(read_report(folder, _read_outcomes(outcomes)), as_json)


def _read_outcomes(outcomes: Path | None) -> dict[str, float] | None:
    from amc_agents.operations.importing.logged_runs import read_outcomes

    return None if outcomes is None else read_outcomes(outcomes)


def _print_rollout(report: CanaryReport | ShadowReport, as_json: bool) -> None:
    if as_json:
        return print_json(report.as_plain())
    for line in str(report).splitlines():
        echo(line)
