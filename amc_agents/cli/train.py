"""`amc collect` and `amc train value`: collect trajectories and train a value model on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.own import Agent, NumberOrFile, number_of_tasks, own_plan
from amc_agents.cli.shared_options import Executor, Model, World, filled, with_settings
from amc_agents.training.settings import Objective, ValueTrainingSettings

if TYPE_CHECKING:
    from amc_agents.bench.executors import Cluster
    from amc_agents.bench.own.plan import OwnPlan
    from amc_agents.bench.own.rollouts import OwnRollouts
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.cli.console import PlainConsole
    from amc_agents.training.collecting import CollectionProgress, Rollouts
    from amc_agents.training.value.train_value import TrainingProgress


def collect(
    out: Annotated[Path, typer.Option(help="Folder of the dataset; an interrupted collection resumes.")],
    model: Model = None,
    agent: Agent = None,
    world: World = "crafting",
    tasks: NumberOrFile = 500,
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories of each task.")] = 8,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature. Default: 1, or your own agent's.")
    ] = None,
    band: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="LOW HIGH",
            help="Difficulty of crafting tasks: minimum and maximum steps of the planner's solution. Default: 4 14.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help='"train" or "test" tasks; train critics on "train".')] = "train",
    first: Annotated[int, typer.Option(min=0, help="Number of the first task.")] = 0,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Maximum steps of a trajectory. Default: the world's, 20 in crafting.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all trajectories.")] = 0,
    concurrent: Annotated[int, typer.Option(min=1, help="Tasks played at the same time.")] = 8,
    executor: Executor = "processes",
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only estimate the cost: the first task, played once, times all trajectories."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Play tasks with a policy and write the trajectories to Parquet files (needs the extra: train).

    With your own agent: amc collect --agent my_agent --tasks tasks.jsonl --out data
    """
    from amc_agents.bench.executors import cluster_of
    from amc_agents.bench.plan import CRAFTING, ComparisonPlan, policy_model
    from amc_agents.runtime.text_agent import text_agent
    from amc_agents.training.collecting import collect as collected

    console = console_beside(as_json)
    if agent is not None:
        refused = {"--world": None if world == CRAFTING else world, "--band": band, "--model": model}
        plan_of_own = own_plan(agent, tasks, console, split=split, first=first, refused=refused)
        if estimate:
            own = plan_of_own.own
            _print_estimate(
                plan_of_own, console, trajectories, own.temperature if temperature is None else temperature,
                horizon or own.horizon, as_json,
            )  # fmt: skip
            return
        console.print(_planned(plan_of_own, trajectories, horizon), soft_wrap=True)
        with cluster_of(executor, out) as cluster:
            rollouts = _collect_own(
                plan_of_own,
                out,
                console,
                trajectories,
                temperature,
                horizon,
                seed,
                concurrent,
                cluster,
            )
        if as_json:
            print_json({"out": str(out), "new": rollouts.collected, "lost": rollouts.lost, "errors": rollouts.errors})
        if rollouts.errors:
            raise typer.Exit(1)
        return
    temperature = 1.0 if temperature is None else temperature
    difficulty = (band or (4, 14)) if world == CRAFTING else band
    plan = ComparisonPlan(
        (), number_of_tasks(tasks), world=world, band=difficulty, split=split, first=first, model=model
    )
    if estimate:
        _print_estimate(plan, console, trajectories, temperature, horizon or plan.horizon, as_json)
        return
    console.print(_planned(plan, trajectories, horizon), soft_wrap=True)
    chat_model = policy_model(plan.policy, temperature)
    played = {"optimal_steps": list(difficulty)} if difficulty else {"world": world}
    chosen, spec = plan.tasks(), plan.world_spec
    with _collection_bar(console, len(chosen)) as show, cluster_of(executor, out) as cluster:
        make = partial(_world_rollouts, plan, temperature, trajectories, horizon or spec.horizon)
        new = collected(
            text_agent(chat_model), chosen, spec.make, trajectories, out, horizon=horizon or spec.horizon,
            policy=plan.policy, settings={"temperature": temperature, **played, "split": split}, seed=seed,
            n_concurrent=concurrent if cluster is None else len(chosen), inputs=plan.input_of,
            play=None if cluster is None else cluster.rollouts(make), progress=show,
        )  # fmt: skip
    console.print(f"{new} new trajectories in {out}. Next: amc train value --data {out} --out VALUE", soft_wrap=True)
    if as_json:
        print_json({"out": str(out), "new": new})


def _planned(plan: ComparisonPlan | OwnPlan, n_trajectories: int, horizon: int | None) -> str:
    """Return how many trajectories are collected."""
    return (
        f"Planned: {plan.n_tasks:,} tasks x {n_trajectories} trajectories of up to {horizon or plan.horizon} steps; "
        "tasks that the dataset has are not repeated. --estimate prints their cost."
    )


def _print_estimate(
    plan: ComparisonPlan | OwnPlan,
    console: PlainConsole,
    n_trajectories: int,
    temperature: float,
    horizon: int,
    as_json: bool,
) -> None:
    from amc_agents.cli.comparison_estimate import print_collection_estimate

    print_collection_estimate(plan, console, n_trajectories, temperature=temperature, horizon=horizon, as_json=as_json)


def _world_rollouts(
    plan: ComparisonPlan,
    temperature: float,
    n_trajectories: int,
    horizon: int,
) -> Rollouts:
    """Make the rollouts of a world's policy in another process."""
    from amc_agents.bench.plan import policy_model
    from amc_agents.runtime.text_agent import text_agent
    from amc_agents.training.collecting import amc_rollouts

    agent, make = text_agent(policy_model(plan.policy, temperature)), plan.world_spec.make
    return amc_rollouts(
        agent, make, n_trajectories, horizon=horizon, inputs=plan.input_of, tools={},
    )  # fmt: skip


def _own_rollouts(
    plan: OwnPlan,
    n_trajectories: int,
    temperature: float,
    horizon: int,
) -> Rollouts:
    """Make the rollouts of an own agent in another process."""
    from amc_agents.bench.own.rollouts import OwnRollouts

    return OwnRollouts(plan.own, n_trajectories, temperature, horizon).draw


def _collect_own(
    plan: OwnPlan,
    out: Path,
    console: PlainConsole,
    n_trajectories: int,
    temperature: float | None,
    horizon: int | None,
    seed: int,
    n_concurrent: int,
    cluster: Cluster | None,
) -> OwnRollouts:
    """Collect with an own agent, and return what was played."""
    import asyncio

    from amc_agents.bench.own.rollouts import OwnRollouts
    from amc_agents.population.conclusion import counted_notes
    from amc_agents.training.collecting import collect_from

    own, tasks = plan.own, plan.tasks()
    temperature = own.temperature if temperature is None else temperature
    drawn = n_trajectories, temperature, horizon or own.horizon
    play = None if cluster is None else cluster.rollouts(partial(_own_rollouts, plan, *drawn))
    rollouts = OwnRollouts(own, *drawn, play)
    settings = {
        "horizon": rollouts.horizon, "n_trajectories": n_trajectories, "seed": seed, "temperature": temperature,
        "agent": own.name, "agent_source": own.source_hash, "split": plan.split,
    }  # fmt: skip
    with _collection_bar(console, len(tasks)) as show, counted_notes():
        rollouts.collected = asyncio.run(
            collect_from(
                rollouts, tasks, out, policy=own.name, settings=settings, seed=seed,
                n_concurrent=n_concurrent if cluster is None else len(tasks),
                progress=show, failed=rollouts.failed,
            )
        )  # fmt: skip
    console.print(f"{rollouts.collected} new trajectories in {out}.")
    for note in rollouts.notes():
        console.print(note, soft_wrap=True)
    console.print(
        f"Next: amc train value --data {out} --base MODEL --out VALUE, with a language model that reads your agent's "
        "words as MODEL",
        soft_wrap=True,
    )
    return rollouts


@contextmanager
def _collection_bar(console: PlainConsole, n_tasks: int) -> Iterator[Callable[[CollectionProgress], None]]:
    """Show the number of tasks that are collected."""
    from rich.progress import Progress as Bar

    with Bar(console=console) as bar:
        line = bar.add_task("collecting", total=n_tasks)
        yield lambda progress: bar.update(line, completed=progress.tasks)


@with_settings(Objective, ValueTrainingSettings, target="return")
def value(
    flags: Mapping[str, Any],
    data: Annotated[Path, typer.Option(help="Folder that `amc collect` or `amc import` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the critic: --critic hf:FOLDER uses it.")],
    base: Annotated[
        str, typer.Option(help="Base model: the name of a shipped model, or a transformers folder.")
    ] = "crafting",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted training.")] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Train even if the base cannot read the texts, or all outcomes are equal."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a value model on collected trajectories, and print its metrics on held-out tasks.

    On several devices: torchrun --nproc-per-node N $(which amc) train value ..., or with accelerate launch.
    """
    from amc_agents.training.metrics import print_metrics
    from amc_agents.training.value.train_value import EMBEDDED, leave_together, train_value

    folder, embedded = base_folder(base)
    settings = filled(EMBEDDED if embedded else ValueTrainingSettings(), flags)
    console = _console_of_first_process(as_json)
    _mention_unknown_outcomes(data, console)
    with training_bar(console) as show:
        checkpoint = train_value(
            folder, data, out, settings, progress=show, resume=resume, anyway=anyway,
            warn=lambda warning: console.print(f"Warning: {warning}"),
        )  # fmt: skip
    print_metrics(checkpoint.metrics, console)
    console.print(f"Written: {out}. Try it: amc bench --critic hf:{out} --out RESULTS", soft_wrap=True)
    console.print("With your own agent: amc bench MODULE --tasks FILE, with the same options")
    if as_json and not console.quiet:
        print_json({"out": str(out), "metrics": checkpoint.metrics})
    leave_together()


def _mention_unknown_outcomes(data: Path, console: PlainConsole) -> None:
    from amc_agents.training.dataset import unknown_outcomes

    unknown = unknown_outcomes(data)
    if unknown:
        console.print(
            f"Left out: {unknown} imported trajectories without a known outcome. Add outcomes as they arrive: "
            f"amc import --outcomes FILE --out {data}"
        )


def _console_of_first_process(as_json: bool) -> PlainConsole:
    """Create a console that prints only in the first process of torchrun or accelerate."""
    import os

    return console_beside(as_json, quiet=os.environ.get("RANK", "0") != "0")


@contextmanager
def training_bar(console: PlainConsole) -> Iterator[Callable[[TrainingProgress], None]]:
    """Show the progress of a training: steps, loss, tokens per second and remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Bar(*columns, console=console) as bar:
        line = bar.add_task("reading model and data", total=None, figures="")

        def show(progress: TrainingProgress) -> None:
            left = str(timedelta(seconds=round(progress.seconds_left)))
            figures = f"loss {progress.loss:.4g}  {progress.tokens_per_second:,.0f} tokens/s  {left} left"
            description = f"training, epoch {progress.epoch}"
            bar.update(line, description=description, completed=progress.step, total=progress.steps, figures=figures)

        yield show


def base_folder(name: str) -> tuple[Path, bool]:
    """Return the folder of a base model, and whether it has the embedded model's layout."""
    import json

    from amc_agents.models.embedded import model_folder

    # A large model's weights are in several files; the embedded model's layout has only one.
    folder = Path(name) if (Path(name) / "config.json").is_file() else model_folder(name)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        return folder, False
    return folder, json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["type"] == "WordLevel"
