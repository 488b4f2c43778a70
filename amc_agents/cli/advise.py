"""`amc advise`: which method would have helped, from your own logs; and `amc train quick`, the critic that it tries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json

if TYPE_CHECKING:
    from amc_agents.cli.console import PlainConsole
    from amc_agents.training.quick import QuickTraining


def advise(
    data: Annotated[Path, typer.Argument(help="Folder that `amc import` or `amc collect` wrote.")],
    critic: Annotated[
        list[str] | None,
        typer.Option(
            help="Critic to judge the finished runs with, besides a quick one that is trained here. Repeatable."
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Function from a Trajectory to its answer, for the vote. Default: the text of the last action.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Page to write. Default: advice.html in DATA.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every k, not only the best.")] = False,
    as_json: AsJson = False,
) -> None:
    """Replay every test-time method on logged runs, and say which one to use (extra: advise). No model is called."""
    from rich.table import Table

    from amc_agents.cli.import_logs import function_named
    from amc_agents.files import replace_file
    from amc_agents.operations.advise import advise as replayed
    from amc_agents.operations.advise.advice_page import HEADER, advice_page, cells, headline, saving_line
    from amc_agents.operations.advise.advising import code_of

    console = console_beside(as_json)
    advice = replayed(data, critics=critic or (), answer=function_named(answer, "--answer"))
    page = out or data / "advice.html"
    replace_file(page, advice_page(advice, data.name))
    table = Table(*HEADER, title=f"{advice.runs.n_runs:,} runs of {len(advice.runs.tasks):,} tasks, replayed")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in advice.rows if every else advice.best_of_each():
        table.add_row(*cells(row))
    console.print(f"{headline(advice)}.")
    if advice.code:
        console.print(f"Use it: {advice.code}")
    if advice.saving is not None:
        console.print(f"To spend less: {saving_line(advice.saving)}.\nUse it: {code_of(advice.saving)}")
    console.print(table)
    if advice.quick is not None and advice.quick.refusal is not None:
        console.print(f"The quick critic is not worth saving: {advice.quick.refusal}.")
    for note in advice.notes:
        console.print(f"Note: {note}.")
    console.print(f"Written: {page}")
    if as_json:
        print_json({**advice.as_plain(), "page": str(page)})


def quick(
    data: Annotated[Path, typer.Option(help="Folder that `amc import` or `amc collect` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the critic; its name is quick:FOLDER.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Save it even if it knows no more than the length of a run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a critic on counts and words, in seconds, without a GPU (extra: advise).

    A critic that does not order the runs of unseen tasks, or knows no more than their length, is not saved.
    """
    from amc_agents.errors import ConfigurationError
    from amc_agents.operations.advise.runs import closing_actions, read_runs
    from amc_agents.training.quick import train_quick

    console = console_beside(as_json)
    trajectories = [run for task in read_runs(data).tasks for run in task.trajectories]
    trained = train_quick(trajectories, closing_actions(trajectories))
    _print_quick(trained, console)
    if trained.refusal is not None and not anyway:
        raise ConfigurationError(f"the critic was not saved: {trained.refusal} (--anyway saves it)")
    trained.model.save(out, trained.as_plain())
    console.print(f"Written: {out}. Use it: critic='quick:{out}'")
    if as_json:
        print_json({"out": str(out), **trained.as_plain()})


def _print_quick(trained: QuickTraining, console: PlainConsole) -> None:
    from rich.table import Table

    if trained.auc is not None:
        table = Table("", "AUC", "95% interval", "tasks", title="on tasks that it was not trained on")
        rows = {
            "finished runs": trained.auc,
            **{f"after {step} steps": value for step, value in trained.by_step.items()},
        }
        for label, value in rows.items():
            table.add_row(label, f"{value.mean:.3f}", f"[{value.low:.3f}, {value.high:.3f}]", str(value.tasks))
        console.print(table)
    heaviest = Table("feature", "weight", title="what it goes by, in finished runs")
    for name, weight in trained.explained:
        heaviest.add_row(name, f"{weight:+.3f}")
    console.print(heaviest)
