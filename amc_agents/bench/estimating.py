"""Estimate what a comparison, a search for settings or a collection costs: the first task, played once.

A method is played with a single particle. N particles cost N times that, because each calls the policy and is read by
the critic. Searches and single decisions are played as they are. Tasks differ in length, so the estimate is no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from amc_agents.bench.comparison import Comparison
from amc_agents.bench.methods import Method
from amc_agents.bench.runner import run_one
from amc_agents.bench.scores import Cost
from amc_agents.bench.tuning_search import PlannedRuns
from amc_agents.smc import Adaptive


@dataclass(frozen=True)
class MethodEstimate:
    """What all runs of a method cost, about."""

    method: str
    n_runs: int
    policy_calls: float
    policy_tokens: float
    critic_calls: float
    critic_tokens: float
    dollars: float | None
    """None: a price is unknown."""


async def estimate_comparison(
    comparison: Comparison, progress: Callable[[str], None] = lambda method: None
) -> list[MethodEstimate]:
    """Play the first task once by each method, for real, and multiply.

    Args:
        comparison: what would be run.
        progress: called with each method's name before it plays.
    """
    estimates = []
    for method in comparison.methods:
        progress(method.name)
        n_runs = len(comparison.tasks) * len(comparison.seeds)
        cost = await _cost_of_one(comparison, method)
        estimates.append(_times(method.name, n_runs, n_runs * _largest(comparison, method), cost))
    return estimates


async def estimate_search(
    comparison: Comparison, planned: Sequence[PlannedRuns], progress: Callable[[str], None] = lambda method: None
) -> list[MethodEstimate]:
    """Play the first task once by each method of a search for settings, for real, and multiply.

    Args:
        comparison: each method with one of its settings, under the method's own name.
        planned: the runs.
        progress: called with each method's name before it plays.
    """
    estimates = []
    for method in comparison.methods:
        progress(method.name)
        n_runs, n_particles = 0, 0
        for runs in planned:
            if runs.method == method.name:
                sized = method if runs.n_particles is None else replace(method, n_particles=runs.n_particles)
                n_runs += runs.n_tasks * len(comparison.seeds)
                n_particles += runs.n_tasks * len(comparison.seeds) * _largest(comparison, sized)
        estimates.append(_times(method.name, n_runs, n_particles, await _cost_of_one(comparison, method)))
    return estimates


async def estimate_collection(comparison: Comparison, n_trajectories: int) -> MethodEstimate:
    """Play the first task once, for real, and multiply.

    Args:
        comparison: the tasks, with the method that draws a trajectory.
        n_trajectories: trajectories of each task.
    """
    (method,) = comparison.methods
    n_runs = len(comparison.tasks) * n_trajectories
    return _times(method.name, n_runs, n_runs, await _cost_of_one(comparison, method))


async def _cost_of_one(comparison: Comparison, method: Method) -> Cost:
    """Play the first task with one particle; searches as they are."""
    played = method if _largest(comparison, method) == 1 else replace(method, n_particles=1)
    result, _ = await run_one(comparison, comparison.seeds[0], comparison.tasks[0], played)
    return result.cost


def _largest(comparison: Comparison, method: Method) -> int:
    """Return the number of particles, at most; 1 for searches, which are played as they are."""
    size = comparison.size_of(method)
    if method.tree or method.trials:
        return 1
    return size.most if isinstance(size, Adaptive) else size


def _times(name: str, n_runs: int, times: int, cost: Cost) -> MethodEstimate:
    return MethodEstimate(
        name,
        n_runs,
        times * cost.policy_calls,
        times * (cost.policy_input_tokens + cost.policy_output_tokens),
        times * (cost.critic_calls + cost.world_model_calls),
        times * (cost.critic_tokens + cost.world_model_tokens),
        None if cost.dollars is None else times * cost.dollars,
    )
