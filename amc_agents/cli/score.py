"""`amc score`: score every state of a dataset."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.shared_options import Executor


def score(
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` or `amc import` wrote.")],
    critic: Annotated[
        str,
        typer.Option(
            help="Critic to score with. hf:FOLDER (options such as ?device=cuda&dtype=bfloat16) and embedded:NAME "
            "score a trajectory in one pass; other critics are called for every state."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write; an interrupted command continues it.")],
    success: Annotated[
        float, typer.Option(help="Minimum return that counts as a success in the printed metrics.")
    ] = 1.0,
    executor: Executor = "processes",
    as_json: AsJson = False,
) -> None:
    """Score every state of collected or imported trajectories, and print whether values rank runs (extra: train)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from amc_agents.bench.executors import cluster_of
    from amc_agents.training.metrics import print_metrics
    from amc_agents.training.score_file import score_metrics
    from amc_agents.training.scoring import ScoringProgress, score_ranking
    from amc_agents.training.scoring import score as write_scores

    console = console_beside(as_json)
    columns = TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}")
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("scoring", total=None, pace="")

        def show(progress: ScoringProgress) -> None:
            pace = f"{progress.states_per_second:,.0f} states/s" if progress.states_per_second else "scored before"
            if progress.seconds_left:
                pace += f", {_duration(progress.seconds_left)} left"
            bar.update(line, completed=progress.trajectories, total=progress.n_trajectories, pace=pace)

        with cluster_of(executor, out) as cluster:
            evaluate = None if cluster is None else partial(cluster.values, critic)
            write_scores(critic, data, out, progress=show, evaluate=evaluate)
    metrics = {"ranking": score_ranking(out, data).as_plain()} | score_metrics(out, success)
    print_metrics(metrics, console, title="values against returns")
    console.print(f"Written: {out}")
    if as_json:
        print_json({"out": str(out), "metrics": metrics})


def _duration(seconds: float) -> str:
    """Format a duration.

    >>> _duration(8000), _duration(75.2)
    ('2 h 13 min', '1 min 15 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
