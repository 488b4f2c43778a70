"""`amc train goal`: from logged trajectories to a critic of goals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def goal(
    data: Annotated[
        Path, typer.Option(help="Folder that `amc collect` wrote, or your own JSONL or Parquet with messages.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the critic: goal:FOLDER names it.")],
    embeddings: Annotated[
        str,
        typer.Option(
            help="hashed:1024 (no model), vllm:http://host:8002?model=NAME, sentence-transformers:NAME or "
            "provider:model (LangChain, with its key in the environment)."
        ),
    ] = "hashed:1024",
    summary: Annotated[
        str, typer.Option(help='How states are told: "none" (as they are), or provider:model to have them summarised.')
    ] = "none",
    cache: Annotated[
        Path | None,
        typer.Option(help="File that keeps embeddings and summaries between calls. Default: cache.sqlite in OUT."),
    ] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the key of the embeddings.")] = None,
    discount: Annotated[float | None, typer.Option(help="gamma: worth of a goal one step further away.")] = None,
    expectile: Annotated[float | None, typer.Option(help="tau: how far V leans towards the best thoughts.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width of the two hidden layers.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations of 50 updates.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Transitions of one update.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    future: Annotated[float, typer.Option(help="Share of goals from the same trajectory's future.")] = 0.5,
    random: Annotated[float, typer.Option(help="Share of goals from other trajectories.")] = 0.4,
    current: Annotated[float, typer.Option(help="Share of goals that are the state itself.")] = 0.1,
    horizon_ends: Annotated[
        bool,
        typer.Option("--horizon-ends", help="Collected data: the step limit is an end, as the agent stops there too."),
    ] = False,
    nearness: Annotated[
        bool, typer.Option(help="Also read how near state and thought are to the goal (the paper does not).")
    ] = True,
    twin: Annotated[bool, typer.Option("--twin", help="Two networks for Q, of which the smaller counts.")] = False,
    calibrate: Annotated[
        bool,
        typer.Option(help="Make a probability of Q, on held-out tasks, by goals of other trajectories."),
    ] = True,
    device: Annotated[str, typer.Option(help='"cpu", "cuda", ...')] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, split and goals.")] = 0,
) -> None:
    """Train a goal critic (goal-conditioned IQL over embeddings), and print how well it does on held-out tasks."""
    import time
    from dataclasses import replace

    from rich.progress import Progress as Bar

    from amc_agents.cli.console import PlainConsole
    from amc_agents.critics.goal.embeddings import as_embeddings
    from amc_agents.training.goal.data import GoalShares, read_episodes
    from amc_agents.training.goal.training import GoalTrainingProgress, GoalTrainingSettings, train_goal

    chosen: dict[str, Any] = {
        "discount": discount, "expectile": expectile, "hidden": hidden, "iterations": iterations,
        "batch_size": batch_size, "learning_rate": learning_rate,
    }  # fmt: skip
    settings = replace(
        GoalTrainingSettings(), nearness=nearness, twin=twin, calibrate=calibrate, device=device, seed=seed,
        shares=GoalShares(future, random, current),
        **{name: given for name, given in chosen.items() if given is not None},
    )  # fmt: skip
    episodes = read_episodes(data, horizon_ends=horizon_ends)
    console = PlainConsole()
    cut = sum(one.truncated or not one.trajectory.done for one in episodes)
    console.print(f"{len(episodes)} trajectories from {data}, {cut} of them cut short")
    begun = time.perf_counter()
    with Bar(console=console) as bar:
        lines = {stage: bar.add_task(stage, visible=False) for stage in ("embedding", "training")}

        def show(progress: GoalTrainingProgress) -> None:
            bar.update(lines[progress.stage], completed=progress.done, total=progress.of, visible=True)

        checkpoint = train_goal(
            episodes, out, as_embeddings(embeddings, key_env=key_env), settings, summary=summary,
            cache=cache or out / "cache.sqlite", progress=show,
        )  # fmt: skip
    _print_metrics(checkpoint.metrics, console)
    console.print(f"Written in {time.perf_counter() - begun:.0f} s: {out}. Try it:")
    console.print(f'  critic = parse_critic("goal:{out}")', highlight=False)
    console.print("  await critic.reach(trajectory, thought, goals)", highlight=False)
    elsewhere = checkpoint.metrics["q_elsewhere"]
    if checkpoint.calibration is None and elsewhere is not None and elsewhere > 0.5:
        console.print(
            "Q is high for goals that were not reached, too: it ranks goals, and is no probability (see --calibrate). "
            "Lower --discount, more --iterations, and --horizon-ends where most trajectories are cut short bring it "
            "down."
        )


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
    table = Table("probability said", "reached", "triples", title="calibrated, on tasks that it was not fitted on")
    for one in report["after"]:
        table.add_row(f"{one['predicted']:.3f}", f"{one['observed']:.3f} +- {one['standard_error']:.3f}", str(one["n"]))
    console.print(table)
    console.print(
        f"Goals of other trajectories of the task, {report['reached']:.1%} of which were reached ({report['label']}): "
        f"mean distance of probability and outcome {report['error_after']:.3f}, of Q itself "
        f"{report['error_before']:.3f}"
    )


_LABELS = {
    "trajectories": "trajectories",
    "transitions": "transitions",
    "auc": "AUC: goals reached later, against states of other trajectories",
    "auc_similarity": "the same by the similarity of goal and state alone",
    "auc_siblings": "AUC against states of other trajectories of the same task",
    "auc_siblings_similarity": "the same by similarity alone",
    "q_later": "mean Q of goals reached later",
    "q_elsewhere": "mean Q of states of other trajectories",
    "q_loss": "squared error of Q against its target",
}
"""Metric -> its line, in order."""
