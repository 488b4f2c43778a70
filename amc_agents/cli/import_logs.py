"""`amc import`: turn the logs of your own agent into a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from amc_agents.cli.console import PlainConsole
    from amc_agents.operations.importing import ImportReport


class Kind(StrEnum):
    """A kind of logs."""

    atif = "atif"
    chat = "chat"
    checkpoints = "checkpoints"
    langsmith = "langsmith"
    spans = "spans"


class Turns(StrEnum):
    """What a user message in the middle of a conversation does."""

    each = "each"
    one = "one"


_OUTCOMES, _READING = "Outcomes", "How the logs are read"


def import_logs(
    out: Annotated[Path, typer.Option(help="Folder of the dataset. Later imports add only what is new.")],
    source: Annotated[
        str | None,
        typer.Argument(
            help="The logs: a LangGraph checkpointer (SQLite file or postgresql:// address), LangSmith runs, "
            "OpenTelemetry spans, ATIF, logs of benchmarks, or "
            "chats (JSON file or folder). The kind is recognised. Without it, only --outcomes is joined."
        ),
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--from", help="Kind of the logs, if it is not recognised.", rich_help_panel=_READING)
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="Field with the outcome, such as score or metadata.resolved: of the record, of the agent's state "
            "(checkpointer), or a span attribute. A number, true or false.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    feedback: Annotated[
        str | None,
        typer.Option(
            help="Name of the LangSmith feedback, or of the evaluation in spans, that is the outcome.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            help="CSV file with the columns thread_id and value. Also updates runs that were imported before.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    reward_function: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your function from a LoggedRun to its outcome, or None where it is not known yet.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your function from a text to the text without personal data; runs before anything is written.",
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Name of the agent, by which training can select.")] = "",
    commit_tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL",
            help="Tool that is a commit at run time, such as send_email: value models then also learn from the states "
            "in which a call of it was pending. Repeatable.",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option(help="Field of a chat's record with the conversation's id.", rich_help_panel=_READING),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Field with the name of the task. Default: conversations that begin alike are the same task.",
            rich_help_panel=_READING,
        ),
    ] = None,
    turns: Annotated[
        Turns | None,
        typer.Option(
            help="'each': a user message starts another run. 'one': it is an observation, as where a world answers "
            "as the user. Default: by the form of the logs; asked for where that does not tell.",
            rich_help_panel=_READING,
        ),
    ] = None,
    step_after: Annotated[
        list[str] | None,
        typer.Option(
            help="Node after which amc() would pause (checkpointer). Repeatable. Default: tools.",
            rich_help_panel=_READING,
        ),
    ] = None,
    system_is_task: Annotated[
        bool,
        typer.Option(
            "--system-is-task",
            help="Keep a leading system message as part of the task. By default it is the agent's prompt.",
            rich_help_panel=_READING,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import the logs of your own agent as a dataset to train critics on (needs the extra: train)."""
    from amc_agents.operations.importing import Outcomes, Reading
    from amc_agents.operations.importing import import_logs as imported

    console = console_beside(as_json)
    with console.status("reading") as line:

        def show(report: ImportReport) -> None:
            line.update(f"{report.trajectories:,} new trajectories, {report.imported_before:,} imported before")

        report = imported(
            source, out, policy=policy, commit_tools=commit_tools or (), progress=show,
            outcomes=Outcomes(reward, feedback, function_named(reward_function, "--reward-function"), outcomes),
            reading=Reading(
                kind=None if kind is None else kind.value, step_after=tuple(step_after or ("tools",)),
                turns=None if turns is None else turns.value, system_is_task=system_is_task, thread=thread, task=task,
            ),
            redact=function_named(redact, "--redact"),
        )  # fmt: skip
    _print_report(report, out, console)
    if as_json:
        print_json({"out": out, **asdict(report), "notes": report.notes()})
    if source is not None and report.read_nothing:
        raise CheckpointError(f"no run was read from {source}: {_nothing(report)}")


def _nothing(report: ImportReport) -> str:
    if report.refused:
        return "all records were refused, for the reasons above"
    return "no record is a call of an agent (docs/importing.md lists the forms that are read)"


def function_named(name: str | None, option: str) -> Callable[..., Any] | None:
    """Load `module:name`; modules in the working directory can be named too."""
    import sys
    from importlib import import_module

    if name is None:
        return None
    module, _, function = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        loaded: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{option} {name}: expected MODULE:NAME of a function ({error})") from error
    if not callable(loaded):
        raise ConfigurationError(f"{option} {name}: expected a function, got {type(loaded).__name__}")
    return loaded


def _print_report(report: ImportReport, out: Path, console: PlainConsole) -> None:
    from rich.table import Table

    table = Table(title="imported", show_header=False)
    for label, number in report.counts():
        table.add_row(label, f"{number:,}")
    console.print(table)
    for note in report.notes():
        console.print(note)
    if report.refused:
        console.print(f"Each refused record, with its line: {out / 'refused.jsonl'}", soft_wrap=True)
    console.print(
        f"{out} now has {report.dataset_trajectories:,} trajectories of {report.dataset_tasks:,} tasks, "
        f"{report.dataset_outcomes_known:,} with a known outcome.",
        soft_wrap=True,
    )
    if report.dataset_outcomes_known > report.dataset_tasks:  # Then a task has several runs.
        console.print(f"Next: amc advise {out}", soft_wrap=True)
    elif report.dataset_outcomes_known:
        console.print(f"Next: amc train value --data {out} --base MODEL --out VALUE", soft_wrap=True)
