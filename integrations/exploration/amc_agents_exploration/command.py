"""`amc explore`: compare agents that learn over the episodes of a hidden instance."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.shared_options import Resume, Split, Workers, available_cpus, check_split
from amc_agents.files import replace_file

if TYPE_CHECKING:
    from amc_agents_exploration.comparison.report import ExplorationResults


def explore(
    out: Annotated[Path, typer.Option(help="Results folder; every trial is stored there as it ends.")],
    agent: Annotated[
        list[str],
        typer.Option(
            help="Agent to play, repeatable: classic-psrl (Thompson sampling on a bandit), classic-ids, bayes-optimal "
            "(combination lock only) or random; psrl, ids, reflexion, icrl or icpi with a model, as in "
            "psrl:provider:model; or module:function, a function (task, seed) that returns an agent."
        ),
    ],
    world: Annotated[
        str,
        typer.Option(
            help="World to explore: bandit, informative-bandit, combination-lock, wordle, riverswim (3 caves) or "
            "riverswim-4."
        ),
    ] = "bandit",
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials of each agent, each with its own hidden instance.")
    ] = 100,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="K: number of episodes of a trial. Default: the world's.")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            help="Temperature of the role that explores (the sampler of PSRL, otherwise the policy). Repeatable, for a "
            "sweep.",
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="Number of the first hidden instance of the split.")] = 0,
    split: Split = "test",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the agents' random draws.")] = 0,
    workers: Workers = None,
    concurrent: Annotated[
        int, typer.Option(min=1, help="Number of trials in progress at the same time in each process.")
    ] = 8,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Compare agents that learn over many episodes.

    Each trial plays many episodes of a hidden instance. The report shows how much regret each agent's exploration
    costs.

    Example: amc explore --agent classic-psrl --agent random --out results
    """
    from amc_agents.cli.comparison import print_files, progress_bar
    from amc_agents.envs.registry import world as registered_world
    from amc_agents_exploration.comparison import plots, report
    from amc_agents_exploration.comparison.agents import explorers
    from amc_agents_exploration.comparison.running import Exploration
    from amc_agents_exploration.comparison.running import explore as play

    check_split(split)
    exploration = Exploration(
        world=world, explorers=explorers(agent, temperature or ()), n_trials=trials,
        n_episodes=episodes or registered_world(world).n_episodes, first=first, split=split, seed=seed,
    )  # fmt: skip
    console, started = console_beside(as_json), time.perf_counter()
    with progress_bar(console) as bar:
        line = bar.add_task("trials", total=len(exploration.explorers) * trials)
        played = play(
            exploration, out, resume=resume, n_workers=workers or available_cpus(), n_concurrent=concurrent,
            progress=lambda done: bar.update(line, completed=done),
        )  # fmt: skip
    seconds = time.perf_counter() - started
    command = shlex.join(["amc", *sys.argv[1:]])
    results = report.summarise(played, exploration.explorers, exploration.settings, command=command)
    title = f"Exploration: {world}"
    console.print(table(results, title))
    replace_file(out / "exploration.md", report.markdown(results))
    files = [
        results.save(out / "exploration.json"),
        out / "exploration.md",
        plots.regret_curves(results, out / "regret.png", title=title),
        plots.surrogates(results, out / "surrogates.png", title=title),
        plots.temperature_sweep(results, out / "temperature.png", title=title),
    ]
    console.print(f"\n{len(played)} trials in {seconds:.0f} s. Written:")
    print_files(files, console)
    if as_json:
        print_json(asdict(results))


def table(results: ExplorationResults, title: str = "") -> Any:
    """Return the scores as a rich table."""
    from amc_agents.cli.comparison import narrow_table
    from amc_agents_exploration.comparison.report import caption, cells, headings

    scores = narrow_table(title, caption(results))
    scores.add_column("agent", no_wrap=True)
    for heading in headings(results):
        scores.add_column(heading, justify="right", min_width=7)
    for explorer in results.explorers:
        scores.add_row(explorer.name, *cells(explorer, results))
    return scores
