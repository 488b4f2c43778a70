"""`amc tune`: each method's temperature, resampling steps and beta, chosen on training tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.compare import (
    Band,
    ConfigFile,
    Critic,
    Model,
    Particles,
    Workers,
    available_cpus,
    command_line,
    compared,
    named_critic,
)
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amc_agents.bench.methods import Tuned
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.tuning import Cell, Score, Tuning

UNTOUCHED = 500_000
"""From this number on, no shipped model was trained on the crafting world's training tasks."""


def tune(
    out: Annotated[
        Path, typer.Option(help="Folder: tuning.json, amc.toml, and every run, to go on from after an interruption.")
    ],
    world: Annotated[str, typer.Option(help="The world: crafting, or one of an installed package.")] = "crafting",
    tasks: Annotated[
        int, typer.Option(min=2, help="Training tasks; 60 tell settings apart that differ by .1, 200 by .05.")
    ] = 60,
    first: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the first one. Default: one that no shipped model was trained on, or 0."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every task.")] = 1,
    particles: Particles = 15,
    band: Band = None,
    critic: Critic = None,
    config: ConfigFile = None,
    model: Model = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas: react, best-of-n, smc, amc, amc-hidden.")
    ] = "react,best-of-n,amc",
    temperatures: Annotated[str | None, typer.Option(help="To try, as 0.4,0.6,0.8,1,1.2 (the default).")] = None,
    success_reward: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="The one return besides 0, where there is no other: weights by eq. 5 are tried too."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every combination, not one setting after the other.")] = False,
    workers: Workers = None,
) -> None:
    """Choose each method's temperature, resampling steps and beta on training tasks, for amc bench and for amc()."""
    from amc_agents.bench import crafting
    from amc_agents.bench import methods as known
    from amc_agents.bench.comparison import predicts_return, ready_critic, steered_blindly
    from amc_agents.bench.plan import CRAFTING, ComparisonPlan
    from amc_agents.bench.tuning import MAKERS, Grid, check_names, choose, config_text
    from amc_agents.cli.console import PlainConsole

    console = PlainConsole()
    in_crafting = world == CRAFTING
    plan = ComparisonPlan(
        methods=(), n_tasks=tasks, world=world, band=(band or crafting.BAND) if in_crafting else band, split="train",
        first=(UNTOUCHED if in_crafting else 0) if first is None else first, seeds=tuple(range(seeds)),
        n_particles=particles, critic=named_critic(critic, config), model=model, plain=True,
    )  # fmt: skip
    names = [name.strip() for name in methods.split(",")]
    check_names(names)
    if success_reward == 0.0:
        raise ConfigurationError("--success-reward is the return of success, above 0, and got 0")
    tried = {} if temperatures is None else {"temperatures": _numbers(temperatures)}
    grid = Grid.of_horizon(plan.world_spec.horizon, success_reward=success_reward, **tried)
    for name in names:
        if steered_blindly(MAKERS[name](grid.starts[0])) and not predicts_return(ready_critic(plan.critic_spec)):
            raise ConfigurationError(f"{name}: the critic has to predict the whole return for that; leave it out")
    score = _scored_by_runs(plan, out / "runs", workers or available_cpus(), console)
    tuning = choose(names, grid, score, full=full)
    console.print(_table(tuning))
    command = command_line()
    settings = {
        "n_particles": particles, "split": plan.split, "first_task": plan.first, "tasks": tasks, "world": world,
        "band": plan.band, "seeds": seeds, "critic": plan.critic_spec,
    }  # fmt: skip
    written = [out / "tuning.json"]
    tuning.save(written[0], command, settings)
    amc = tuning.best.get(known.AMC) or tuning.best.get(known.AMC_HIDDEN)
    if amc is not None:
        written.append(out / "amc.toml")
        told = f"Chosen by `{command}`"
        text = config_text(
            amc.tuned, critic=plan.critic_spec, n_particles=particles, horizon=plan.world_spec.horizon, told=told
        )
        replace_file(written[1], text)
    console.print("Written:")
    for path in written:
        console.print(f"  {path}", highlight=False)
    console.print(f"Compare on tasks that nothing was chosen on: amc bench --tuned {written[0]} --out FOLDER")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(one) for one in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--temperatures takes numbers, as in 0.4,0.6,0.8; got {text!r}") from None
    if min(found) <= 0:
        raise ConfigurationError(f"--temperatures are above 0 (greedy play has nothing to tune); got {text!r}")
    return found


def _scored_by_runs(plan: ComparisonPlan, runs: Path, n_workers: int, console: Any) -> Score:
    """Runs settings in `plan`, keeping every run."""
    from dataclasses import replace

    from amc_agents.bench.tuning import cells_of, method_of

    def score(wanted: Sequence[tuple[str, Tuned]]) -> list[Cell]:
        asked = replace(plan, methods=tuple(method_of(*one) for one in wanted))
        title = f"{len(wanted)} settings"
        return cells_of(wanted, compared(asked, runs, resume=True, n_workers=n_workers, console=console, title=title))

    return score


def _table(tuning: Tuning) -> Any:
    from rich.table import Column, Table

    from amc_agents.bench.report import score_text

    scores = (Column(heading, no_wrap=True) for heading in ("pick", "top 5"))
    table = Table("method", "temperature", "resampling after", "beta", *scores)
    for name, cell in tuning.best.items():
        resampled = bool(cell.tuned.steps)
        pick = score_text(cell.scores["deployable" if name == "amc-hidden" else "oracle"])
        top5 = score_text(None if name == "react" else cell.scores["top5"])
        steps = ", ".join(map(str, cell.tuned.steps)) or "-"
        beta = f"{cell.tuned.beta:g}" + (" (eq. 5)" if cell.tuned.success_reward else "")
        table.add_row(name, f"{cell.tuned.temperature:g}", steps, beta if resampled else "-", pick, top5)
    return table
