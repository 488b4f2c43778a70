"""`amc explore`: agents that learn over episodes, side by side in a world with hidden instances."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from amc_agents.cli.compare import available_cpus
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file


def explore(
    out: Annotated[Path, typer.Option(help="Folder for the results; every trial is kept there as it ends.")],
    agent: Annotated[
        list[str],
        typer.Option(
            help="classic-psrl (Thompson sampling on a bandit), classic-ids, bayes-optimal (the lock alone), random; "
            "psrl, ids, reflexion, icrl or icpi with a model, as in psrl:provider:model; or module:function, a "
            "function (task, seed) that makes your own. Repeat it to compare several."
        ),
    ],
    world: Annotated[
        str,
        typer.Option(help="bandit, informative-bandit, combination-lock, wordle, riverswim (3 caves) or riverswim-4."),
    ] = "bandit",
    trials: Annotated[
        int, typer.Option(min=1, help="Trials of each agent, each with a hidden instance of its own.")
    ] = 100,
    episodes: Annotated[int | None, typer.Option(min=1, help="K, episodes of a trial. Default: the world's.")] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0, help="Of the role that explores: PSRL's sampler, else the policy. Repeat it to sweep over several."
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="Number of the first hidden instance of the split.")] = 0,
    split: Annotated[str, typer.Option(help='"test", or "train" to choose settings on.')] = "test",
    seed: Annotated[int, typer.Option(min=0, help="Of the agents' luck.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the work. Default: one for each CPU, 4 at most.")
    ] = None,
    concurrent: Annotated[int, typer.Option(min=1, help="Trials at the same time in each process.")] = 8,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
) -> None:
    """Play episode after episode of hidden instances, and report what the agents' exploration costs them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from amc_agents.bench.exploration import plots as explore_plots
    from amc_agents.bench.exploration import report as explore_report
    from amc_agents.bench.exploration.agents import explorers
    from amc_agents.bench.exploration.running import Exploration
    from amc_agents.bench.exploration.running import explore as explored
    from amc_agents.cli.console import PlainConsole
    from amc_agents.envs.registry import world as found_world

    if split not in ("test", "train"):
        raise ConfigurationError(f'--split is "test" or "train", got {split!r}')
    exploration = Exploration(
        world=world, explorers=explorers(agent, temperature or ()), n_trials=trials,
        n_episodes=episodes or found_world(world).n_episodes, first=first, split=split, seed=seed,
    )  # fmt: skip
    console, begun = PlainConsole(), time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("trials", total=len(exploration.explorers) * trials)
        played = explored(
            exploration, out, resume=resume, n_workers=workers or available_cpus(), n_concurrent=concurrent,
            progress=lambda done: bar.update(line, completed=done),
        )  # fmt: skip
    seconds = time.perf_counter() - begun
    results = explore_report.summarise(
        played, exploration.explorers, exploration.settings, command=shlex.join(["amc", *sys.argv[1:]])
    )
    title = f"Exploration: {world}"
    console.print(explore_report.table(results, title))
    written: list[Path | None] = [results.save(out / "exploration.json"), out / "exploration.md"]
    replace_file(out / "exploration.md", explore_report.markdown(results))
    written.append(explore_plots.regret_curves(results, out / "regret.png", title=title))
    written.append(explore_plots.surrogates(results, out / "surrogates.png", title=title))
    written.append(explore_plots.temperature_sweep(results, out / "temperature.png", title=title))
    console.print(f"\n{len(played)} trials in {seconds:.0f} s. Written:")
    for path in written:
        if path is not None:
            console.print(f"  {path}", highlight=False)
