"""`amc code`: any coding agent that is a command, raced in copies of a repository."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from amc_agents.cli.output import AsJson, console_beside, echo, print_json

if TYPE_CHECKING:
    from amc_agents.operations.code.run_state import CodeRun


class _RaceByDefault(TyperGroup):
    """`amc code [OPTIONS] -- COMMAND` is `amc code race [OPTIONS] -- COMMAND`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the default command."""
        if not ctx.resilient_parsing and args and args[0] not in {*self.commands, "--help"}:
            args = ["race", *args]
        return super().parse_args(ctx, args)


code_app = typer.Typer(
    cls=_RaceByDefault,
    no_args_is_help=True,
    help='Race any coding agent: amc code -n 4 --check "pytest -q" -- COMMAND. Options: amc code race --help.',
)
CopyNumber = Annotated[int | None, typer.Argument(metavar="[K]", help="Copy. Default: the winner.")]
RunId = Annotated[str | None, typer.Option("--run", metavar="ID", help="Run. Default: the newest of this repository.")]


@code_app.command(
    "race", epilog='Example: amc code race -n 4 --check "pytest -q" --protect tests -- mini -t "Fix it" -y'
)
def race_agents(
    command: Annotated[list[str], typer.Argument(help="The agent's command, after `--`.")],
    check: Annotated[str, typer.Option(help="Shell command that fails now, and exits with 0 when the work is done.")],
    n: Annotated[int, typer.Option("-n", help="Number of copies.")] = 4,
    protect: Annotated[
        list[str] | None, typer.Option(help="Files or folders that have your version in the check. Repeatable.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Ignored files that the copies get too, such as .env. Repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, or NAME of a variable like a key, which is not passed otherwise. Repeatable."),
    ] = None,
    own_home: Annotated[bool, typer.Option("--own-home", help="Give each agent a HOME of its own.")] = False,
    max_seconds: Annotated[float | None, typer.Option(help="Time limit of each agent.")] = None,
    check_seconds: Annotated[float, typer.Option(help="Time limit of the check.")] = 600,
    trust_check: Annotated[
        bool, typer.Option("--trust-check", help="Accept a check that does not react to broken source files.")
    ] = False,
    keep: Annotated[bool, typer.Option("--no-apply", help="Leave the working tree as it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an agent in N copies of this repository; the first whose changes pass the check wins.

    Its changes come to your working tree, and never overwrite what you changed meanwhile.
    """
    from amc_agents.operations.code.checking import Check
    from amc_agents.operations.code.copies import Repository
    from amc_agents.operations.code.racing import CodeSettings, apply_winner, race

    settings = CodeSettings(n, tuple(include or ()), tuple(env or ()), own_home, max_seconds, trust_check)
    decider = Check(check, tuple(protect or ()), check_seconds)
    repository = Repository.around(Path.cwd())
    shown: dict[int, str] = {}

    def show(run: CodeRun) -> None:
        for copy in run.copies:
            if copy.state not in ("waiting", shown.get(copy.number)):
                shown[copy.number] = copy.state
                echo(f"copy {copy.number}: {copy.state}{f' ({copy.note})' if copy.note else ''}", err=True)

    async def interruptible() -> CodeRun:
        task = asyncio.create_task(race(command, decider, repository, settings, show))
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        run = asyncio.run(interruptible())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    if run.winner is not None and not keep:
        run = apply_winner(run)
    _print(run, as_json)
    raise typer.Exit(0 if run.winner is not None else 1)


def _print(run: CodeRun, as_json: bool) -> None:
    from rich.table import Table

    console = console_beside(as_json)
    table = Table("copy", "result", "exit", "seconds", "files", "lines", "note", title=f"run {run.id}: {run.state}")
    for copy in run.copies:
        status = "" if copy.status is None else str(copy.status)
        row = (copy.number, copy.state, status, f"{copy.seconds:.1f}", len(copy.changes), copy.lines, copy.note)
        table.add_row(*map(str, row))
    console.print(table)
    for note in run.notes:
        console.print(f"Note: {note}.")
    if run.winner is None:
        console.print("No copy passed. See `amc code diff K`; `amc code take K` takes the changes of a copy.")
    else:
        where = f"are in your {run.applied}" if run.applied else "wait: amc code take"
        console.print(f"Copy {run.winner} won; its changes {where}.")
    console.print(f"Copies and outputs: {run.folder}. Remove them: amc code clean")
    if as_json:
        print_json(run.as_plain())


def _found(run: str | None) -> CodeRun:
    from amc_agents.operations.code.copies import Repository
    from amc_agents.operations.code.run_state import find_run, state_folder

    return find_run(state_folder(), run, Repository.around(Path.cwd()).top)


@code_app.command(epilog="Example: amc code show --json")
def show(
    run: Annotated[str | None, typer.Argument(help="Run. Default: the newest of this repository.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its copies, what each did, and who won."""
    _print(_found(run), as_json)


@code_app.command(epilog="Example: amc code diff 2")
def diff(number: CopyNumber = None, run: RunId = None, as_json: AsJson = False) -> None:
    """Print the changes of a copy, by default the winner's."""
    found = _found(run)
    chosen = found.chosen(number)
    changes = found.diff(chosen)
    if as_json:
        print_json({"run": found.id, "copy": chosen, "diff": changes})
    else:
        echo(changes.removesuffix("\n"))


@code_app.command(epilog="Example: amc code take 2")
def take(number: CopyNumber = None, run: RunId = None, as_json: AsJson = False) -> None:
    """Bring the changes of a copy, by default the winner's, to the working tree."""
    from amc_agents.operations.code.racing import apply_winner

    taken = apply_winner(_found(run), number)
    if as_json:
        print_json(taken.as_plain())
    else:
        echo(f"The changes of copy {taken.winner} are in {taken.repository.top}.")


@code_app.command(epilog="Example: amc code clean --json")
def clean(
    run: Annotated[str | None, typer.Argument(help="Run. Default: all runs of all repositories.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove runs that have ended, and processes that they have left."""
    from amc_agents.operations.code import run_state

    removed, running = run_state.clean(run_state.state_folder(), run)
    if as_json:
        print_json({"removed": removed, "running": running})
    else:
        still = f" Still running: {', '.join(running)}." if running else ""
        echo(f"Removed: {', '.join(removed) or 'nothing'}.{still}")
