"""`--estimate` of `amc bench`, `amc tune` and `amc collect`: what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from amc_agents.bench.methods import Method
from amc_agents.bench.plan import Plan
from amc_agents.bench.runner import PlannedRuns, estimate_runs
from amc_agents.bench.tuned import MAKERS
from amc_agents.cli.output import print_json
from amc_agents.concurrency.background import run_in_background
from amc_agents.population.conclusion import quiet_notes

if TYPE_CHECKING:
    from amc_agents.bench.comparison import Comparison
    from amc_agents.bench.runner import MethodEstimate
    from amc_agents.bench.tuning import TuningSearch


def print_estimate(plan: Plan, console: Any, *, as_json: bool) -> None:
    """Play the first task by each method, and print what all runs would cost."""
    comparison = plan.comparison()
    n_runs = len(comparison.tasks) * len(comparison.seeds)
    _estimate(comparison, [PlannedRuns(method.name, None, n_runs) for method in plan.methods], console, as_json=as_json)


def print_search_estimate(search: TuningSearch, plan: Plan, console: Any, *, as_json: bool) -> None:
    """Play the first training task by each method, and print what the search would cost."""
    # A middle temperature, with the settings from which a search of one setting after the other starts.
    temperature = sorted(search.grid.temperatures)[len(search.grid.temperatures) // 2]
    start = replace(search.grid.starts[0], temperature=temperature)
    sampled = replace(plan, methods=tuple(MAKERS[name](start) for name in search.names))
    _estimate(sampled.comparison(), search.planned(len(plan.seeds)), console, as_json=as_json)


def print_collection_estimate(
    plan: Plan,
    console: Any,
    n_trajectories: int,
    *,
    temperature: float,
    horizon: int,
    as_json: bool,
) -> None:
    """Play the first task once, and print what all trajectories would cost."""
    name, label = "collect", "collection"
    method = Method(name, label, temperature, n_particles=1, critic="uniform")
    comparison = replace(replace(plan, methods=(method,)).comparison(), horizon=horizon)
    planned = [PlannedRuns(name, None, len(comparison.tasks) * n_trajectories)]
    _estimate(comparison, planned, console, "trajectories", as_json=as_json)


def planned_line(search: TuningSearch, plan: Plan) -> str:
    """Return how many runs a search makes."""
    n_runs = sum(runs.n_runs for runs in search.planned(len(plan.seeds)))
    return (
        f"Planned: up to {n_runs:,} runs of up to {plan.horizon} steps; stored ones are not repeated. "
        "--estimate prints their cost."
    )


def _estimate(
    comparison: Comparison, planned: Sequence[PlannedRuns], console: Any, what: str = "runs", *, as_json: bool
) -> None:
    """Play the first task by each method, and print a table of estimates, and their sum."""

    def show(method: str) -> None:
        if what == "runs":
            console.print(f"one run of {method} ...")

    with quiet_notes():
        estimates = run_in_background(estimate_runs(comparison, planned, show), n_workers=1)
    console.print(_table(estimates))
    known = [each.dollars for each in estimates]
    dollars = None if None in known else sum(each for each in known if each is not None)
    spent = "dollars unknown: a model has no price ([prices] of the configuration file)"
    console.print(
        f"About {sum(each.n_runs for each in estimates):,} {what}, "
        f"{sum(each.policy_tokens + each.critic_tokens for each in estimates):,.0f} tokens, "
        + (spent if dollars is None else f"${dollars:,.2f}")
        + ". One task is a small sample: tasks differ in length.",
        soft_wrap=True,
    )
    if as_json:
        print_json([asdict(each) for each in estimates])


def _table(estimates: Sequence[MethodEstimate]) -> Any:
    from rich.table import Column, Table

    headings = ("runs", "policy calls", "policy tokens", "critic calls", "critic tokens", "dollars")
    table = Table("method", *(Column(heading, justify="right") for heading in headings))
    for each in estimates:
        amounts = (each.n_runs, each.policy_calls, each.policy_tokens, each.critic_calls, each.critic_tokens)
        dollars = "?" if each.dollars is None else f"{each.dollars:,.2f}"
        table.add_row(each.method, *(f"{amount:,.0f}" for amount in amounts), dollars)
    return table
