"""`amc demo` and `amc bench`: compare methods in a world with a small policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.own import Agent, Concurrent, NumberOrFile, number_of_tasks, own_plan
from amc_agents.cli.shared_options import (
    Band,
    ConfigFile,
    Critic,
    Executor,
    First,
    Methods,
    Model,
    Particles,
    Resume,
    Split,
    SuccessReward,
    Tasks,
    Watch,
    Workers,
    World,
    available_cpus,
    check_split,
    critic_name,
    particles_of,
    positive,
    steps_of,
)
from amc_agents.errors import ConfigurationError

if TYPE_CHECKING:
    from amc_agents.bench.plan import Plan


def demo(
    out: Annotated[
        Path,
        typer.Option(help="Results folder: a new or empty folder, or the folder of an earlier demo to replace."),
    ] = Path("amc-demo"),
    tasks: Tasks = 16,
    particles: Particles = "8",
    band: Band = None,
    methods: Methods = None,
    critic: Critic = None,
    config: ConfigFile = None,
    model: Model = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Compare Agentic Monte Carlo (AMC) with other methods in under a minute, on tasks that no model was trained on."""
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.results_folder import demo_folder
    from amc_agents.bench.selection import MethodChoice
    from amc_agents.cli.comparison import Execution, run_and_report, with_methods

    console = console_beside(as_json)
    plan = ComparisonPlan(
        methods=(),
        n_tasks=tasks,
        n_particles=particles_of(particles),
        band=band,
        critic=critic_name(critic, config),
        model=model,
    )
    plan = with_methods(plan, MethodChoice(_names(methods)), console)
    with demo_folder(out):
        results = run_and_report(plan, out, console, "Agentic Monte Carlo", Execution(workers or available_cpus()))
    if as_json:
        print_json(results.model_dump())


def bench(
    out: Annotated[Path, typer.Option(help="Results folder; the result of every run is stored as the run ends.")],
    own: Annotated[
        str | None, typer.Argument(metavar="[MODULE[:NAME]]", help="Your own agent, as --agent.", show_default=False)
    ] = None,
    agent: Agent = None,
    world: World = "crafting",
    tasks: NumberOrFile = 100,
    first: First = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions of every task, each with its own seed.")] = 1,
    particles: Particles = "15",
    band: Band = None,
    split: Split = "test",
    critic: Critic = None,
    config: ConfigFile = None,
    methods: Methods = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Sampling temperature of all methods. Default: each method's tuned one."),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Temperature of the target of all methods that weight particles, in reward units. "
            "Default: each method's tuned one.",
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Steps after which to resample, as in 4,8,12. Default: the tuned ones.")
    ] = None,
    success_reward: SuccessReward = None,
    tuned: Annotated[
        Path | None, typer.Option(help="The tuning.json of `amc tune`. Default: the shipped settings.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Chat model, as provider:model, for SMC with this model as critic: zero-shot, and with the prompt of "
            "Fleet of Agents (FoA)."
        ),
    ] = None,
    decision_critic: Annotated[
        str | None, typer.Option(help="Critic of LAC's decisions. Default: the critic of AMC.")
    ] = None,
    candidates: Annotated[
        int, typer.Option(min=1, help="K: number of sampled actions among which voting and LAC decide.")
    ] = 5,
    finish: Annotated[
        int,
        typer.Option(min=1, help="Number of particles that end a race; above 1, the critic chooses among them."),
    ] = 1,
    keep_decisions: Annotated[
        bool, typer.Option("--keep-decisions", help="Store every decision of LAC, and report on them.")
    ] = False,
    keep_trajectories: Annotated[
        bool,
        typer.Option(
            "--keep-trajectories",
            help="Store every trajectory, and write them to OUT/trajectories, a dataset as that of `amc collect` "
            "(extra: train).",
        ),
    ] = False,
    model: Model = None,
    workers: Workers = None,
    concurrent: Concurrent = 8,
    executor: Executor = "processes",
    resume: Resume = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="Only estimate the cost: the first task, played once by each method, times all runs."
        ),
    ] = False,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Run methods x tasks x seeds, and report means, standard errors and paired differences.

    In a world of the library: amc bench --out results --tasks 20

    With your own agent: amc bench my_agent --tasks tasks.jsonl --out results

    Exit status: 0; 1 if runs of your own agent failed (--resume runs them again); 2 after an error.
    """
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.selection import MethodChanges, MethodChoice
    from amc_agents.bench.tuned import read_chosen
    from amc_agents.cli.comparison import Execution, run_and_report, with_methods
    from amc_agents.cli.comparison_estimate import print_estimate
    from amc_agents.smc import AtSteps

    console = console_beside(as_json)
    n_workers = _n_workers(workers, executor, watch=watch)
    changes = MethodChanges(
        temperature,
        positive("--beta", beta),
        None if steps is None else AtSteps(*steps_of("--steps", steps)),
        positive("--success-reward", success_reward),
    )
    choice = MethodChoice(
        _names(methods), read_chosen(tuned) if tuned else {}, judge, decision_critic, candidates, finish, changes
    )
    common: dict[str, Any] = {"n_particles": particles_of(particles), "critic": critic_name(critic, config)}
    plan: Plan
    if (named := _one_agent(own, agent)) is not None:
        refused = {
            "--world": None if world == "crafting" else world, "--band": band, "--model": model,
            "--decision-critic": decision_critic, "--keep-decisions": keep_decisions,
        }  # fmt: skip
        plan = own_plan(
            named, tasks, console, split=split, first=first, seeds=seeds, config=config, refused=refused, **common
        )
        plan = with_methods(plan, choice, console)
    else:
        check_split(split)
        plan = ComparisonPlan(
            methods=(), n_tasks=number_of_tasks(tasks), world=world, band=band, split=split, first=first,
            seeds=tuple(range(seeds)), model=model, **common,
        )  # fmt: skip
        plan = with_methods(plan, choice, console)
    note = _foreign_settings(plan, chosen=tuned is not None or temperature is not None)
    if note:
        console.print(note, soft_wrap=True)
    if estimate:
        print_estimate(plan, console, as_json=as_json)
        return
    results = run_and_report(
        plan, out, console, "Methods", Execution(n_workers, concurrent, executor, resume),
        keep_decisions=keep_decisions, keep_trajectories=keep_trajectories, watch=watch,
    )  # fmt: skip
    if as_json:
        print_json(results.model_dump())
    if results.failures:
        raise typer.Exit(1)


def _n_workers(workers: int | None, executor: str, *, watch: bool) -> int:
    """Return the number of processes; the populations of other processes cannot be watched."""
    if not watch:
        return workers or available_cpus()
    if (workers or 1) > 1 or executor != "processes":
        raise ConfigurationError("--watch shows the runs of this process alone: leave --workers and --executor out")
    return 1


def _one_agent(own: str | None, agent: str | None) -> str | None:
    if own is not None and agent is not None:
        raise ConfigurationError(f"two agents are named, {own} and {agent}: give one of them")
    return own or agent


def _foreign_settings(plan: Plan, *, chosen: bool) -> str | None:
    """Return a warning if the shipped settings, tuned for a small shipped policy, apply to a chat model."""
    from amc_agents.bench.plan import ComparisonPlan, is_embedded

    if chosen or not isinstance(plan, ComparisonPlan) or is_embedded(plan.policy):
        return None
    return (
        f"The methods' settings were tuned for a small shipped policy. For a fair comparison with {plan.policy}, tune "
        f"them first: amc tune --world {plan.world} --model {plan.policy} --out tuning, then --tuned tuning/tuning.json"
    )


def _names(methods: str | None) -> list[str] | None:
    return methods.split(",") if methods else None
