"""`amc demo` and `amc bench`: the comparison in a world with a small policy."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file

if TYPE_CHECKING:
    from amc_agents.bench.methods import Method
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.records import RunResult
    from amc_agents.smc import Schedule

Model = Annotated[
    str | None,
    typer.Option(help="The policy: a shipped model's name, or a folder of that layout. Default: the world's."),
]
Critic = Annotated[
    str | None,
    typer.Option(
        help="The critic that AMC resamples by, such as hf:path/to/value or my_module:object. "
        "Default: the config file's, then the value model shipped with the policy.",
        envvar="AMC_CRITIC",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A configuration file; its critic is used.", envvar="AMC_CONFIG")
]
Tasks = Annotated[int, typer.Option(min=1, help="How many tasks; they are generated, the same ones every time.")]
Particles = Annotated[int, typer.Option(min=1, help="N: trajectories that Best-of-N, SMC and AMC run side by side.")]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Only these methods, separated by commas: react, react-greedy, best-of-n, smc, amc, amc-hidden. Others "
        "run only where they are named: 'decisions' is ReAct, vote and LAC side by side; an unknown name lists all."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that share the work. Default: one for each CPU, 4 at most.")
]
Band = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="LOW HIGH", help="Difficulty, in the crafting world: steps of the planner's way. Default: 12 16."
    ),
]


def demo(
    out: Annotated[
        Path,
        typer.Option(help="Folder for the results: an empty one, a new one, or an earlier demo's, which is replaced."),
    ] = Path("amc-demo"),
    tasks: Tasks = 16,
    particles: Particles = 8,
    band: Band = None,
    methods: Methods = None,
    critic: Critic = None,
    config: ConfigFile = None,
    model: Model = None,
    workers: Workers = None,
) -> None:
    """Compare AMC with its alternatives on tasks that no model was trained on, in under a minute."""
    _run(
        out, n_tasks=tasks, seeds=1, particles=particles, band=band, critic=named_critic(critic, config),
        methods=methods, model=model, workers=workers,
        split="test", replace_earlier=True, title="Agentic Monte Carlo",
    )  # fmt: skip


def bench(
    out: Annotated[Path, typer.Option(help="Folder for the results; every run is kept there as it ends.")],
    world: Annotated[str, typer.Option(help="The world: crafting, or one of an installed package.")] = "crafting",
    tasks: Tasks = 100,
    first: Annotated[int, typer.Option(min=0, help="Number of the first task of the split.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every task, each with a seed of its own.")] = 1,
    particles: Particles = 15,
    band: Band = None,
    split: Annotated[str, typer.Option(help='"test", or "train" to choose settings on.')] = "test",
    critic: Critic = None,
    config: ConfigFile = None,
    methods: Methods = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="One sampling temperature for all. Default: each method's tuned one.")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(min=0.0, help="One beta for all that weigh trajectories (reward units). Default: the tuned one."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Resample after these steps, as 4,8,12. Default: the tuned ones."),
    ] = None,
    success_reward: Annotated[
        float | None,
        typer.Option(min=0.0, help="The one return besides 0, where there is no other: AMC then weighs by eq. 5."),
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="Settings that amc tune chose: its tuning.json. Default: the shipped ones.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="A chat model, provider:model, for SMC with a zero-shot and an FoA critic.")
    ] = None,
    decision_critic: Annotated[
        str | None, typer.Option(help="The critic that LAC judges single actions by. Default: --critic's.")
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="K: samples that vote and LAC decide among.")] = 5,
    keep_decisions: Annotated[
        bool, typer.Option("--keep-decisions", help="Keep every decision of LAC, and report on them.")
    ] = False,
    model: Model = None,
    workers: Workers = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
) -> None:
    """Run methods x tasks x seeds, and report means, standard errors and paired differences."""
    if split not in ("test", "train"):
        raise ConfigurationError(f'--split is "test" or "train", got {split!r}')
    _run(
        out, n_tasks=tasks, seeds=seeds, particles=particles, band=band, critic=named_critic(critic, config),
        methods=methods, model=model, workers=workers,
        split=split, temperature=temperature, beta=beta, judge=judge, resume=resume, title="Methods", world=world,
        first=first, decision_critic=decision_critic, candidates=candidates, keep_decisions=keep_decisions,
        tuned=tuned, steps=steps, success_reward=success_reward,
    )  # fmt: skip


def _run(
    out: Path,
    *,
    n_tasks: int,
    seeds: int,
    particles: int,
    band: tuple[int, int] | None,
    critic: str | None,
    methods: str | None,
    model: str | None,
    split: str,
    title: str,
    world: str = "crafting",
    first: int = 0,
    workers: int | None = None,
    temperature: float | None = None,
    beta: float | None = None,
    judge: str | None = None,
    resume: bool = False,
    replace_earlier: bool = False,
    decision_critic: str | None = None,
    candidates: int = 5,
    keep_decisions: bool = False,
    tuned: Path | None = None,
    steps: str | None = None,
    success_reward: float | None = None,
) -> None:
    from contextlib import nullcontext
    from dataclasses import replace

    from amc_agents.bench import crafting, plots, report
    from amc_agents.bench.comparison import ready_critic
    from amc_agents.bench.methods import chosen
    from amc_agents.bench.plan import CRAFTING, ComparisonPlan
    from amc_agents.bench.results_folder import demo_folder
    from amc_agents.bench.tuning import read_chosen, retuned
    from amc_agents.cli.console import PlainConsole

    console = PlainConsole()
    if band is None and world == CRAFTING:
        band = crafting.BAND
    plan = ComparisonPlan(
        methods=(), n_tasks=n_tasks, world=world, band=band, split=split, first=first, seeds=tuple(range(seeds)),
        n_particles=particles, critic=critic, model=model,
    )  # fmt: skip
    wanted = crafting.methods(judge)
    if tuned is not None:
        wanted = retuned(wanted, read_chosen(tuned))
    if methods:
        found = plan.world_spec
        deciding = crafting.decision_methods(decision_critic, candidates, found.oracle, found.actions is not None)
        wanted = chosen([*wanted, *deciding], methods.split(","))
    if beta == 0.0:
        raise ConfigurationError("--beta is a temperature of the target in reward units, above 0, and got 0")
    if success_reward == 0.0:
        raise ConfigurationError("--success-reward is what success pays, above 0, and got 0")
    schedule = None if steps is None else _schedule(steps)
    wanted = [_changed(one, temperature, beta, schedule, success_reward) for one in wanted]
    if judge and not any(method.critic and method.critic.endswith(f":{judge}") for method in wanted):
        console.print(f"--judge {judge}: no critic of this kind is known to this version; left out")
    possible = _possible(wanted, ready_critic(plan.critic_spec))
    if len(possible) < len(wanted):
        left_out = ", ".join(method.name for method in wanted if method not in possible)
        console.print(f"left out: {left_out} (the critic has to predict the whole return for that)")
    unjudged = [method.name for method in possible if not plan.has_critic and method.asks_the_critic]
    if unjudged:
        console.print(f"left out: {', '.join(unjudged)} (nothing to judge by: name it with --decision-critic)")
    plan = replace(plan, methods=tuple(method for method in possible if method.name not in unjudged))

    begun = time.perf_counter()
    with demo_folder(out) if replace_earlier else nullcontext():
        records = compared(
            plan, out, resume=resume, n_workers=workers or available_cpus(), console=console,
            keep_decisions=keep_decisions,
        )  # fmt: skip
    seconds = time.perf_counter() - begun
    title = f"{title} in the {world} world" + (f": tasks of {band[0]} to {band[1]} steps" if band else "")
    results = report.summarise(
        records, plan.methods, plan.comparison().settings, command=command_line(), seconds=None if resume else seconds
    )
    console.print(report.score_table(results, title))
    console.print(report.detail_table(results))
    differences = report.difference_table(results)
    if differences is not None:
        console.print(differences)
    written = [results.save(out / "results.json"), out / "results.md"]
    replace_file(written[1], report.markdown(results))
    written.append(plots.method_scores(results, out / "scores.png", title=title))
    more = _draw_a_run(plan, records, out / "genealogy.png"), _tell_decisions(plan, out)
    console.print(f"\n{len(records)} runs in {seconds:.0f} s. Written:")
    for path in [*written, *(one for one in more if one)]:
        console.print(f"  {path}", highlight=False)


def named_critic(named: str | None, config: Path | None) -> str | None:
    """What --critic or AMC_CRITIC names, else the configuration file."""
    if config is None:
        return named
    from amc_agents.config import Config

    file = Config.load(config)
    return file.critic if named is None else named


def _schedule(steps: str) -> Schedule:
    from amc_agents.smc import AtSteps

    try:
        at = [int(step) for step in steps.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"--steps is whole numbers as in 4,8,12, and got {steps!r}") from error
    return AtSteps(*at)


def _changed(
    method: Method,
    temperature: float | None,
    beta: float | None,
    schedule: Schedule | None,
    success_reward: float | None,
) -> Method:
    """A method with what the command line says of all; greedy play, and one trajectory, have less to change."""
    from dataclasses import replace

    from amc_agents.smc import Never

    if temperature is not None and method.temperature > 0:
        method = replace(method, temperature=temperature)
    if beta is not None and not method.single:
        method = replace(method, beta=beta)
    if method.resample == Never():
        return method
    if schedule is not None:
        method = replace(method, resample=schedule)
    # Without a critic nothing is predicted that could be a probability.
    if success_reward is not None and method.critic is None:
        method = replace(method, success_reward=success_reward)
    return method


def _possible(methods: list[Any], critic: Any) -> list[Any]:
    """The methods that can run with this critic."""
    from amc_agents.bench.comparison import predicts_return, steered_blindly

    return [method for method in methods if predicts_return(critic) or not steered_blindly(method)]


def compared(
    plan: ComparisonPlan,
    out: Path,
    *,
    resume: bool,
    n_workers: int,
    console: Any,
    keep_decisions: bool = False,
    title: str = "runs",
) -> list[RunResult]:
    """Every run of a plan, with a bar that counts them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from amc_agents.bench.plan import run_plan

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as bar:
        line = bar.add_task(title, total=len(plan.methods) * plan.n_tasks * len(plan.seeds))
        return run_plan(
            plan, out, resume=resume, n_workers=n_workers, progress=lambda done: bar.update(line, completed=done),
            keep_decisions=keep_decisions,
        )  # fmt: skip


def _tell_decisions(plan: ComparisonPlan, out: Path) -> Path | None:
    """What the decisions of a folder say of prior and critic; None where it keeps none that asked a critic."""
    from amc_agents.bench.decision_report import markdown
    from amc_agents.bench.decisions import read_decisions

    keys = {(task.id, seed) for task in plan.tasks() for seed in plan.seeds}
    played = [one for one in read_decisions(out) if (one.task, one.seed) in keys]
    told = markdown(played, {method.name: method.label for method in plan.methods})
    if not told:
        return None
    path = out / "decisions.md"
    replace_file(path, told)
    return path


def _draw_a_run(plan: ComparisonPlan, records: list[RunResult], path: Path) -> Path | None:
    """Play the AMC run whose picture shows most once more, with its seed, and draw it; None without AMC."""
    from amc_agents.bench import plots
    from amc_agents.bench.runner import quiet_about_identical_particles, run_one
    from amc_agents.concurrency.background import run_in_background

    of_amc = [record for record in records if record.method == "amc"]
    if not of_amc:
        return None
    # A run that succeeds with some of its particles shows what a resampling does.
    best = max(of_amc, key=lambda record: (record.scores.success, -abs(record.scores.mean - 0.4)))
    comparison = plan.comparison()
    task = next(task for task in comparison.tasks if task.id == best.task)
    method = next(method for method in plan.methods if method.name == "amc")
    with quiet_about_identical_particles():
        playing = run_one(comparison, best.seed, task, method)
        _, run = run_in_background(playing, n_workers=1)
    if not any(point.ancestors is not None for point in run.history):
        return None
    return plots.genealogy(run, path, title=f"AMC at work: {getattr(task.payload, 'goal', task.id)}")


def available_cpus() -> int:
    """CPUs that this process may use, at most 4: more would each load the models for little."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, usable)


def command_line() -> str:
    """What was typed, as results keep it."""
    called = Path(sys.argv[0])
    program = f"python {called}" if called.suffix == ".py" else "amc"
    return " ".join([program, *sys.argv[1:]])
