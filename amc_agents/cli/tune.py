"""`amc tune`: choose each method's temperature, resampling steps and beta on training tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.options import (
    Band,
    ConfigFile,
    Critic,
    Model,
    Particles,
    SuccessReward,
    Workers,
    World,
    available_cpus,
    command_line,
    critic_name,
    particles_of,
    positive,
)
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amc_agents.bench.methods import Tuned
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.tuning import Cell, Score, Tuning

UNTOUCHED = 500_000
"""The first training task of the crafting world on which no shipped model was trained."""


def tune(
    out: Annotated[
        Path,
        typer.Option(help="Folder for tuning.json, amc.toml and all runs. An interrupted command continues there."),
    ],
    world: World = "crafting",
    tasks: Annotated[
        int,
        typer.Option(
            min=2,
            help="Number of training tasks. 60 tasks separate settings whose scores differ by 0.1, 200 tasks by 0.05.",
        ),
    ] = 60,
    first: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of the first training task. Default: 0; in crafting, a task unseen by shipped models."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions of every task.")] = 1,
    particles: Particles = "15",
    band: Band = None,
    critic: Critic = None,
    config: ConfigFile = None,
    model: Model = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated methods: react, best-of-n, smc, amc, amc-hidden.")
    ] = "react,best-of-n,amc",
    temperatures: Annotated[str | None, typer.Option(help="Temperatures to try. Default: 0.4,0.6,0.8,1,1.2.")] = None,
    success_reward: SuccessReward = None,
    full: Annotated[
        bool, typer.Option("--full", help="Try every combination of settings, instead of one setting after the other.")
    ] = False,
    workers: Workers = None,
) -> None:
    """Choose each method's temperature, resampling steps and beta on training tasks, for `amc bench` and `amc()`."""
    from amc_agents.bench.plan import CRAFTING, ComparisonPlan
    from amc_agents.bench.tuning import choose, tuning_grid
    from amc_agents.cli.comparison import print_files
    from amc_agents.cli.console import PlainConsole

    console = PlainConsole()
    plan = ComparisonPlan(
        methods=(), n_tasks=tasks, world=world, band=band, split="train",
        first=(UNTOUCHED if world == CRAFTING else 0) if first is None else first, seeds=tuple(range(seeds)),
        n_particles=particles_of(particles), critic=critic_name(critic, config), model=model, plain=True,
    )  # fmt: skip
    names = [name.strip() for name in methods.split(",")]
    grid = tuning_grid(names, plan, _numbers(temperatures), positive("--success-reward", success_reward))
    tuning = choose(names, grid, _scored_by_runs(plan, out / "runs", workers or available_cpus(), console), full=full)
    console.print(_table(tuning))
    files = _write_files(tuning, plan, out)
    console.print("Written:")
    print_files(files, console)
    console.print(f"Compare on test tasks: amc bench --tuned {files[0]} --out FOLDER")


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--temperatures takes numbers, as in 0.4,0.6,0.8; got {text!r}") from None
    if min(numbers) <= 0:
        raise ConfigurationError(f"--temperatures must be above 0 (greedy play has nothing to tune); got {text!r}")
    return numbers


def _scored_by_runs(plan: ComparisonPlan, runs: Path, n_workers: int, console: Any) -> Score:
    """Return a function that scores settings by running them in the plan; every run is stored in the folder `runs`."""
    from dataclasses import replace

    from amc_agents.bench.tuning import cells_of, method_of
    from amc_agents.cli.comparison import run_with_bar

    def score(settings: Sequence[tuple[str, Tuned]]) -> list[Cell]:
        methods = tuple(method_of(name, tuned) for name, tuned in settings)
        title = f"{len(settings)} settings"
        records = run_with_bar(replace(plan, methods=methods), runs, console, title, resume=True, n_workers=n_workers)
        return cells_of(settings, records)

    return score


def _write_files(tuning: Tuning, plan: ComparisonPlan, out: Path) -> list[Path | None]:
    from amc_agents.bench.methods import AMC, AMC_HIDDEN, plain_size
    from amc_agents.bench.tuning import config_text

    command, path = command_line(), out / "tuning.json"
    settings = {
        "n_particles": plain_size(plan.n_particles), "split": plan.split, "first_task": plan.first,
        "tasks": plan.n_tasks, "world": plan.world, "band": plan.difficulty,
        "seeds": len(plan.seeds), "critic": plan.critic_spec,
    }  # fmt: skip
    tuning.save(path, command, settings)
    amc = tuning.best.get(AMC) or tuning.best.get(AMC_HIDDEN)
    if amc is None:
        return [path]
    text = config_text(
        amc.tuned, critic=plan.critic_spec, n_particles=plan.n_particles, horizon=plan.world_spec.horizon,
        comment=f"Chosen by `{command}`",
    )  # fmt: skip
    replace_file(out / "amc.toml", text)
    return [path, out / "amc.toml"]


def _table(tuning: Tuning) -> Any:
    from rich.table import Column, Table

    from amc_agents.bench.report_tables import score_text

    scores = (Column(heading, no_wrap=True) for heading in ("pick", "top 5"))
    table = Table("method", "temperature", "resampling after", "beta", *scores)
    for name, cell in tuning.best.items():
        tuned = cell.tuned
        pick = score_text(cell.scores["deployable" if name == "amc-hidden" else "oracle"])
        top5 = score_text(None if name == "react" else cell.scores["top5"])
        beta = f"{tuned.beta:g}" + (" (eq. 5)" if tuned.success_reward else "")
        steps = ", ".join(map(str, tuned.steps))
        table.add_row(name, f"{tuned.temperature:g}", steps or "-", beta if steps else "-", pick, top5)
    return table
