"""`amc doctor`: check the installation and the servers, and print a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amc_agents.cli.printable import echo

if TYPE_CHECKING:
    from amc_agents.operations.doctor import Check

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

    from amc_agents.operations.doctor import Patient, examine

    policy = {"base_url": policy_url, "model": policy_model, "key_env": policy_key_env}
    patient, read = Patient.read(config, critic, policy)
    checks = [read, *asyncio.run(examine(patient))]
    failed = sum(check.state == "failed" for check in checks)
    if as_json:
        _print_json(checks)
    else:
        _print_table(checks)
    raise typer.Exit(1 if failed else 0)


def _print_json(checks: list[Check]) -> None:
    import json
    from dataclasses import asdict

    ok = all(check.state != "failed" for check in checks)
    echo(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, indent=2))


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
