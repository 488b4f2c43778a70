"""`amc train goal`: train a goal critic on logged trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.shared_options import filled, with_settings
from amc_agents.training.settings import GoalShares, GoalTrainingSettings


@with_settings(GoalTrainingSettings, GoalShares)
def goal(
    flags: Mapping[str, Any],
    data: Annotated[
        Path, typer.Option(help="Folder that `amc collect` wrote, or your own JSONL or Parquet files with messages.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the critic; its name is goal:FOLDER.")],
    embeddings: Annotated[
        str,
        typer.Option(
            help="hashed:1024 (no model), vllm:http://host:8002?model=NAME, sentence-transformers:NAME or "
            "provider:model (LangChain, with its key in the environment)."
        ),
    ] = "hashed:1024",
    summary: Annotated[
        str, typer.Option(help='Description of states: "none" (full text), or provider:model for summaries.')
    ] = "none",
    cache: Annotated[
        Path | None,
        typer.Option(help="File that keeps embeddings and summaries between calls. Default: cache.sqlite in OUT."),
    ] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the key of the embeddings.")] = None,
    horizon_ends: Annotated[
        bool,
        typer.Option("--horizon-ends", help="Collected data: treat the step limit as the end of the episode."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a goal critic (goal-conditioned IQL over embeddings), and print its metrics on held-out tasks."""
    import time

    from rich.progress import Progress as Bar

    from amc_agents.critics.goal.embeddings import as_embeddings
    from amc_agents.training.goal.train_goal import GoalTrainingProgress, train_goal
    from amc_agents.training.goal.transitions import read_episodes

    settings = filled(GoalTrainingSettings(), flags)
    episodes = read_episodes(data, horizon_ends=horizon_ends)
    console = console_beside(as_json)
    cut = sum(episode.truncated or not episode.trajectory.done for episode in episodes)
    console.print(f"{len(episodes)} trajectories from {data}, {cut} of them truncated")
    start = time.perf_counter()
    with Bar(console=console) as bar:
        lines = {stage: bar.add_task(stage, visible=False) for stage in ("embedding", "training")}

        def show(progress: GoalTrainingProgress) -> None:
            bar.update(lines[progress.stage], completed=progress.done, total=progress.of, visible=True)

        checkpoint = train_goal(
            episodes, out, as_embeddings(embeddings, key_env=key_env), settings, summary=summary,
            cache=cache or out / "cache.sqlite", progress=show,
        )  # fmt: skip
    _print_metrics(checkpoint.metrics, console)
    console.print(f"Written in {time.perf_counter() - start:.0f} s: {out}. Try it:")
    console.print(f'  critic = parse_critic("goal:{out}")', highlight=False)
    console.print("  await critic.reach(trajectory, thought, goals)", highlight=False)
    elsewhere = checkpoint.metrics["q_elsewhere"]
    if checkpoint.calibration is None and elsewhere is not None and elsewhere > 0.5:
        console.print(
            "Q is also high for goals that were not reached: it ranks goals but is not a probability (see "
            "--calibrate). To lower it, lower --discount, raise --iterations, or use --horizon-ends if most "
            "trajectories are truncated."
        )
    if as_json:
        print_json({"out": out, "metrics": checkpoint.metrics})


def _print_metrics(metrics: Mapping[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table(title="goal critic on held-out tasks", show_header=False)
    for name, label in _LABELS.items():
        value = metrics[name]
        figure = "not defined" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
        table.add_row(label, figure)
    console.print(table)
    _print_reliability(metrics.get("calibration"), console)


def _print_reliability(report: Mapping[str, Any] | None, console: Any) -> None:
    from rich.table import Table

    if report is None:
        return
    if "none" in report:
        console.print(f"Not calibrated: {report['none']}")
        return
    table = Table("predicted", "reached", "triples", title="calibration, cross-validated over tasks")
    for bin in report["after"]:
        table.add_row(f"{bin['predicted']:.3f}", f"{bin['observed']:.3f} +- {bin['standard_error']:.3f}", str(bin["n"]))
    console.print(table)
    console.print(
        f"Goals of other trajectories of the task; {report['reached']:.1%} were reached ({report['label']}). Expected "
        f"calibration error {report['error_after']:.3f}, of Q itself {report['error_before']:.3f}"
    )


_LABELS = {
    "trajectories": "trajectories",
    "transitions": "transitions",
    "auc": "AUC: goals reached later, against states of other trajectories",
    "auc_similarity": "the same, from the similarity of goal and state only",
    "auc_siblings": "AUC against states of other trajectories of the same task",
    "auc_siblings_similarity": "the same, from similarity only",
    "q_later": "mean Q of goals reached later",
    "q_elsewhere": "mean Q of states of other trajectories",
    "q_loss": "squared error of Q against its target",
}
"""Metric -> label, in display order."""
