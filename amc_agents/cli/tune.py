"""`amc tune`: choose each method's temperature, resampling steps and beta on training tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, print_json
from amc_agents.cli.own import Agent, Concurrent, number_of_tasks, number_or_file, own_plan
from amc_agents.cli.shared_options import (
    Band,
    ConfigFile,
    Critic,
    Executor,
    Model,
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
from amc_agents.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amc_agents.bench.plan import Plan
    from amc_agents.bench.tuned import Cell, Setting, Tuning
    from amc_agents.cli.comparison import Execution
    from amc_agents.cli.console import PlainConsole


def tune(
    out: Annotated[
        Path,
        typer.Option(help="Folder for tuning.json, amc.toml and all runs. An interrupted command continues there."),
    ],
    agent: Agent = None,
    world: World = "crafting",
    tasks: Annotated[
        Any,
        typer.Option(
            parser=number_or_file,
            metavar="N|FILE",
            help="N: number of training tasks. 60 tasks separate settings whose scores differ by 0.1, 200 tasks by "
            "0.05. FILE: tasks for your own agent; those of its training split are used.",
        ),
    ] = 60,
    first: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of the first training task. Default: one from which on the shipped models have seen none; "
            "0 for your own agent.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions of every task.")] = 1,
    particles: Annotated[
        str,
        typer.Option(
            metavar="N|N,N|START..MOST",
            help="N: number of trajectories that Best-of-N, SMC and AMC run in parallel. 8,15: the values that --joint "
            "tries. 4..32 starts with 4, adds more where the answer is undecided, up to 32, and stops when it is "
            "decided.",
        ),
    ] = "15",
    band: Band = None,
    critic: Critic = None,
    config: ConfigFile = None,
    model: Model = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods: react, best-of-n, smc, amc, amc-hidden. Default: react,best-of-n,amc; with "
            "your own agent and a critic of the whole return, amc-hidden instead of amc."
        ),
    ] = None,
    temperatures: Annotated[str | None, typer.Option(help="Temperatures to try. Default: 0.4,0.6,0.8,1,1.2.")] = None,
    success_reward: SuccessReward = None,
    full: Annotated[
        bool, typer.Option("--full", help="Try every combination of settings, instead of one setting after the other.")
    ] = False,
    joint: Annotated[
        bool,
        typer.Option(
            "--joint",
            help="Start with every combination of settings on few tasks, and go on with the best third on three times "
            "as many (successive halving).",
        ),
    ] = False,
    max_calls: Annotated[
        float | None,
        typer.Option(min=1, help="With --joint: policy calls of a run, at most, in the mean. Needed for several N."),
    ] = None,
    regret: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="With --joint: tune one setting after the other too, and compare the two choices on N training tasks "
            "that neither saw; your own FILE's last ones.",
        ),
    ] = None,
    workers: Workers = None,
    concurrent: Concurrent = 8,
    executor: Executor = "processes",
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="Only estimate the cost: the first task, played once by each method, times all runs."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose each method's temperature, resampling steps and beta on training tasks, for `amc bench` and `amc()`.

    With your own agent: amc tune --agent my_agent --tasks tasks.jsonl --critic hf:value --out tuning
    """
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.tuning import TuningSearch, tuning_grid
    from amc_agents.cli.comparison import Execution, print_files
    from amc_agents.cli.comparison_estimate import planned_line, print_search_estimate
    from amc_agents.envs.registry import world as registered_world

    console = console_beside(as_json)
    sizes = _sizes(particles, joint=joint)
    _check_joint(joint=joint, full=full, max_calls=max_calls, regret=regret, sizes=sizes)
    common: dict[str, Any] = {
        "n_particles": max(sizes) if sizes else particles_of(particles), "critic": critic_name(critic, config)
    }  # fmt: skip
    plan: Plan
    chosen = _numbers(temperatures)
    if agent is not None:
        refused = {"--world": None if world == "crafting" else world, "--band": band, "--model": model}
        plan = own_plan(
            agent, tasks, console, split="train", first=first or 0, seeds=seeds, config=config, refused=refused,
            **common,
        )  # fmt: skip
        chosen = (plan.own.temperature,) if plan.own.temperature_is_fixed else chosen
    else:
        plan = ComparisonPlan(
            methods=(), n_tasks=number_of_tasks(tasks), world=world, band=band, split="train",
            first=registered_world(world).unseen_from if first is None else first, seeds=tuple(range(seeds)),
            model=model, plain=True, **common,
        )  # fmt: skip
    names = [name.strip() for name in (methods or _methods_for(plan)).split(",")]
    grid = tuning_grid(names, plan, chosen, positive("--success-reward", success_reward))
    search = TuningSearch(
        names, replace(grid, n_particles=sizes), _n_searched(plan, regret), full, joint, max_calls, regret
    )
    if estimate:
        print_search_estimate(search, plan, console, as_json=as_json)
        return
    console.print(planned_line(search, plan), soft_wrap=True)
    run = Runs(Execution(workers or available_cpus(), concurrent, executor, resume=True), console)
    tuning = search.carry_out(
        lambda settings, n: run.score(settings, plan.part(0, n), out / "runs"),
        lambda settings, n: run.score(settings, plan.part(search.n_tasks, n), out / "check"),
    )
    console.print(_table(tuning))
    for line in _regret_lines(tuning) if regret else ():
        console.print(line, soft_wrap=True)
    files = _write_files(tuning, plan, out)
    console.print("Written:")
    print_files(files, console)
    console.print(f"Look at all settings: amc report {out}", soft_wrap=True)
    _print_next(plan, tuning, files, console)
    if as_json:
        print_json({name: cell.as_plain() for name, cell in tuning.best.items()})


def _regret_lines(tuning: Tuning) -> list[str]:
    """Return a line for each method: what one setting after the other loses, or that both searches agree."""
    return [
        f"{name}: joint search minus one setting after the other, on {lost.tasks} other tasks: pick "
        f"{lost.difference:+.3f} [{lost.low:+.3f}, {lost.high:+.3f}]"
        if (lost := tuning.regret.get(name))
        else f"{name}: a search of one setting after the other chose the same setting, so it loses nothing here"
        for name in tuning.best
    ]


def _methods_for(plan: Plan) -> str:
    """Return the methods to tune if none are named; for an own agent the one that can be deployed, if there is one."""
    from amc_agents.bench.comparison import predicts_return, ready_critic
    from amc_agents.bench.plan import ComparisonPlan

    own = not isinstance(plan, ComparisonPlan)
    return "react,best-of-n," + ("amc-hidden" if own and predicts_return(ready_critic(plan.critic_spec)) else "amc")


def _print_next(plan: Plan, tuning: Tuning, files: list[Path | None], console: PlainConsole) -> None:
    from amc_agents.bench.own import OwnPlan

    if not isinstance(plan, OwnPlan):
        console.print(f"Compare on test tasks: amc bench --tuned {files[0]} --out FOLDER", soft_wrap=True)
        return
    critic = f" --critic {plan.critic}" if plan.critic else ""
    console.print(
        f"Compare on test tasks: amc bench {plan.agent} --tasks {plan.tasks_file}{critic} --tuned {files[0]} "
        "--out FOLDER",
        soft_wrap=True,
    )
    best = _deployed(tuning)
    if best is not None:
        console.print(
            f"Use the settings: amc(make_agent({best.tuned.temperature:g}), ..., "
            f"settings=AmcSettings(config={str(files[1])!r}))",
            soft_wrap=True,
        )


def _deployed(tuning: Tuning) -> Cell | None:
    """Return the cell whose settings the configuration file gets."""
    from amc_agents.bench.methods import AMC, AMC_HIDDEN

    return tuning.best.get(AMC) or tuning.best.get(AMC_HIDDEN)


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--temperatures takes numbers, as in 0.4,0.6,0.8; got {quoted(text)}") from None
    if min(numbers) <= 0:
        raise ConfigurationError(
            f"--temperatures must be above 0 (greedy play has nothing to tune); got {quoted(text)}"
        )
    return numbers


@dataclass(frozen=True)
class Runs:
    """How runs are executed and shown."""

    execution: Execution
    console: Any

    def score(self, settings: Sequence[Setting], plan: Plan, runs: Path) -> list[Cell]:
        """Score settings by running them in the plan; every run is stored in `runs`."""
        from amc_agents.bench.run_files import failed_runs
        from amc_agents.bench.tuned import cells_of, method_of, without_failed_tasks
        from amc_agents.cli.comparison import run_with_bar

        tried = replace(plan, methods=tuple(method_of(name, tuned) for name, tuned in settings))
        title = f"{len(settings)} settings, {len(plan.tasks())} tasks"
        records = run_with_bar(tried, runs, self.console, title, self.execution)
        failures = failed_runs(runs, tried.comparison().items(), [record.key for record in records])
        kept, note = without_failed_tasks(records, failures)
        if note:
            self.console.print(note, soft_wrap=True)
        return cells_of(settings, kept)


def _n_searched(plan: Plan, regret: int | None) -> int:
    """Return the number of tasks that the search plays; a file's last ones are kept to measure the regret."""
    from amc_agents.bench.plan import ComparisonPlan

    given = len(plan.tasks())
    n_tasks = given - (0 if regret is None or isinstance(plan, ComparisonPlan) else regret)
    if n_tasks < 1:
        raise ConfigurationError(f"--regret {regret} needs more than {regret} training tasks, and the file has {given}")
    return n_tasks


def _sizes(particles: str, *, joint: bool) -> tuple[int, ...]:
    """Read the values of N to try; empty if --particles has a single value."""
    if "," not in particles:
        return ()
    if not joint:
        raise ConfigurationError(f"--particles {particles} tries several N: add --joint, or give a single N")
    sizes = tuple(particles_of(size.strip()) for size in particles.split(","))
    if not all(isinstance(size, int) for size in sizes):
        raise ConfigurationError(f"--particles takes numbers, as in 8,15,24; got {quoted(particles)}")
    return tuple(dict.fromkeys(size for size in sizes if isinstance(size, int)))


def _check_joint(*, joint: bool, full: bool, max_calls: float | None, regret: int | None, sizes: Sequence[int]) -> None:
    if joint and full:
        raise ConfigurationError("--joint and --full are two ways to search: leave one out")
    given = {"--max-calls": max_calls, "--regret": regret}
    useless = [name for name, value in given.items() if value is not None]
    if useless and not joint:
        raise ConfigurationError(f"{', '.join(useless)} applies to --joint only: add it")
    if regret is not None and len(sizes) > 1:
        raise ConfigurationError("--regret compares two searches at one N, and --particles gives several: give one")
    if len(sizes) > 1 and max_calls is None:
        raise ConfigurationError(
            "several N are compared at equal cost only: give --max-calls, the policy calls of a run in the mean"
        )


def _write_files(tuning: Tuning, plan: Plan, out: Path) -> list[Path | None]:
    from amc_agents.bench.methods import plain_size
    from amc_agents.bench.plan import ComparisonPlan
    from amc_agents.bench.tuned import config_text

    command, path = command_line(), out / "tuning.json"
    settings = {
        "n_particles": plain_size(plan.n_particles), "split": plan.split, "first_task": plan.first,
        "tasks": len(plan.tasks()), "seeds": len(plan.seeds), "critic": plan.critic_spec,
        **({"world": plan.world, "band": plan.difficulty} if isinstance(plan, ComparisonPlan) else plan.about),
    }  # fmt: skip
    tuning.save(path, command, settings)
    amc = _deployed(tuning)
    if amc is None:
        return [path]
    text = config_text(
        amc.tuned, critic=plan.critic_spec, n_particles=amc.tuned.n_particles or plan.n_particles,
        horizon=plan.horizon, comment=f"Chosen by `{command}`",
    )  # fmt: skip
    replace_file(out / "amc.toml", text)
    return [path, out / "amc.toml"]


def _table(tuning: Tuning) -> Any:
    from rich.table import Column, Table

    from amc_agents.bench.report_tables import setting_row

    scores = (Column(heading, no_wrap=True) for heading in ("pick", "top 5"))
    table = Table("method", "temperature", "resampling after", "beta", *scores)
    for name, cell in tuning.best.items():
        table.add_row(name, *setting_row(cell))
    return table
