"""`amc score`: the values of all states of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` wrote.")],
    critic: Annotated[
        str,
        typer.Option(
            help="hf:FOLDER (with ?device=cuda&dtype=bfloat16, say) and embedded:NAME read each trajectory once; any "
            "other critic is asked state by state."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file; an interrupted call goes on where it was.")],
    success: Annotated[float, typer.Option(help="The least return that counts as a success, in the summary.")] = 1.0,
) -> None:
    """Score all states of collected trajectories, and print how well that predicts what came (extra: train)."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    from amc_agents.cli.console import PlainConsole
    from amc_agents.training.report import print_metrics
    from amc_agents.training.score_file import score_metrics
    from amc_agents.training.scoring import ScoringProgress
    from amc_agents.training.scoring import score as write_scores

    console = PlainConsole()
    columns = TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}")
    with Bar(*columns, console=console) as bar:
        line = bar.add_task("scoring", total=None, pace="")

        def show(progress: ScoringProgress) -> None:
            pace = f"{progress.states_per_second:,.0f} states/s" if progress.states_per_second else "scored before"
            if progress.seconds_left:
                pace += f", {_time(progress.seconds_left)} left"
            bar.update(line, completed=progress.trajectories, total=progress.n_trajectories, pace=pace)

        write_scores(critic, data, out, progress=show)
    print_metrics(score_metrics(out, success), console, title="values against what came")
    console.print(f"Written: {out}")


def _time(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds.

    >>> _time(8000), _time(75.2)
    ('2 h 13 min', '1 min 15 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
