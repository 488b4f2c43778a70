"""The tuned settings of the comparison in the crafting world, in one place; other worlds begin with them.

The constants come from `amc tune`, on tasks of the training split that no model was trained on.
"""

from __future__ import annotations

from dataclasses import replace

from amc_agents.bench.methods import (
    Method,
    Tuned,
    amc,
    amc_hidden,
    best_of_n,
    judged,
    lac_variants,
    listed_variants,
    react,
    react_greedy,
    smc,
    vote,
    without_critic_first,
)
from amc_agents.envs.crafting import generate_tasks
from amc_agents.types import Task

BAND = (12, 16)
"""Difficulty of the demo's tasks: least and most steps of the planner's way, as hard as its horizon of 20 allows."""

REACT = Tuned(temperature=0.4)
BEST_OF_N = Tuned(temperature=0.6, beta=0.1)
SMC = Tuned(temperature=0.6, steps=(6, 12), beta=0.1)
"""As Best-of-N: with a reward at the end alone, f = 0 gives all live particles the same weight."""
AMC = Tuned(temperature=0.4, steps=(6, 12), beta=0.1)
AMC_HIDDEN = AMC
VOTE = Tuned(temperature=0.6)
LAC = Tuned(temperature=0.6, alpha=1.0)
"""A first choice, on 20 training tasks and with the value model; `reproduce/lac.py` makes it for a critic."""


def methods(judge: str | None = None) -> list[Method]:
    """The methods with their tuned settings; with a chat model as judge, those that it allows."""
    ours = [react(REACT), react_greedy(), best_of_n(BEST_OF_N), smc(SMC), amc(AMC), amc_hidden(AMC_HIDDEN)]
    return ours + (judged(judge, AMC) if judge else [])


def decision_methods(
    critic: str | None = None, k: int = 5, oracle: str | None = None, listed: bool = False
) -> list[Method]:
    """The methods that decide each step among K candidates: run only where they are named.

    Args:
        critic: judges candidate actions; None: the comparison's.
        k: K.
        oracle: the critic that knows the world; None: there is none.
        listed: the world lists its actions.
    """
    voting, deciding = replace(VOTE, k=k), replace(LAC, k=k)
    every = [
        vote(voting),
        vote(voting, greedy=True),
        *lac_variants(deciding, critic=critic, oracle=oracle),
        *(listed_variants(deciding, critic=critic, oracle=oracle) if listed else []),
    ]
    return without_critic_first(every)


def tasks(n_tasks: int, band: tuple[int, int] = BAND, *, split: str = "test", first: int = 0) -> list[Task]:
    """Crafting tasks of a band of difficulty; those of the split "test" were used for nothing before."""
    return list(generate_tasks(n_tasks, split, first_seed=first, optimal_steps=band))
