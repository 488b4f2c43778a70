"""`amc bench --estimate`: what a comparison would cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from amc_agents.bench.estimating import estimate_comparison
from amc_agents.bench.own.plan import OwnPlan
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.cli.json_output import print_json
from amc_agents.concurrency.background import run_in_background
from amc_agents.population.conclusion import quiet_notes

if TYPE_CHECKING:
    from amc_agents.bench.estimating import MethodEstimate


def print_estimate(plan: ComparisonPlan | OwnPlan, console: Any, *, as_json: bool) -> None:
    """Play the first task by each method, and print what all runs would cost."""

    def show(method: str) -> None:
        console.print(f"one run of {method} ...")

    with quiet_notes():
        estimates = run_in_background(estimate_comparison(plan.comparison(), show), n_workers=1)
    console.print(_table(estimates))
    known = [each.dollars for each in estimates]
    dollars = None if None in known else sum(each for each in known if each is not None)
    spent = "dollars unknown: a model has no price ([prices] of the configuration file)"
    console.print(
        f"About {sum(each.n_runs for each in estimates):,} runs, "
        f"{sum(each.policy_tokens + each.critic_tokens for each in estimates):,.0f} tokens, "
        + (spent if dollars is None else f"${dollars:,.2f}")
        + ". One task is a small sample: tasks differ in length.",
        soft_wrap=True,
    )
    if as_json:
        print_json([asdict(each) for each in estimates])


def _table(estimates: list[MethodEstimate]) -> Any:
    from rich.table import Column, Table

    headings = ("runs", "policy calls", "policy tokens", "critic calls", "critic tokens", "dollars")
    table = Table("method", *(Column(heading, justify="right") for heading in headings))
    for each in estimates:
        amounts = (each.n_runs, each.policy_calls, each.policy_tokens, each.critic_calls, each.critic_tokens)
        dollars = "?" if each.dollars is None else f"{each.dollars:,.2f}"
        table.add_row(each.method, *(f"{amount:,.0f}" for amount in amounts), dollars)
    return table
