"""The tuned settings of the comparison in the crafting world, which other worlds start from.

The constants come from `amc tune`, on tasks of the training split on which no model was trained.
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
    lats,
    listed_variants,
    react,
    react_greedy,
    reflact,
    reflexion,
    self_plan,
    smc,
    stopping_methods,
    tree_of_thoughts,
    vote,
    without_critic_first,
)
from amc_agents.envs.crafting import generate_tasks
from amc_agents.lac.types import LacSettings
from amc_agents.types import Task

BAND = (12, 16)
"""Difficulty of the demo's tasks: minimum and maximum steps of the planner's solution, up to the limit that a horizon
of 20 steps allows."""

REACT = Tuned(temperature=0.4)
BEST_OF_N = Tuned(temperature=0.6, beta=0.1)
SMC = Tuned(temperature=0.6, steps=(6, 12), beta=0.1)
"""Equal to Best-of-N here: with a reward only at the end, f = 0 gives all live particles the same weight."""
AMC = Tuned(temperature=0.4, steps=(6, 12), beta=0.1)
AMC_HIDDEN = AMC
TREE_OF_THOUGHTS = Tuned(temperature=0.6)
LATS = Tuned(temperature=0.6)
VOTE = Tuned(temperature=0.6)
LAC = Tuned(temperature=0.6, alpha=1.0)
"""A first choice on 20 training tasks with the value model; `reproduce/lac.py` tunes it for a given critic."""


def methods(judge: str | None = None) -> list[Method]:
    """Return the standard methods with their tuned settings, and SMC with a chat model as judge if `judge` is given."""
    standard = [react(REACT), react_greedy(), best_of_n(BEST_OF_N), smc(SMC), amc(AMC), amc_hidden(AMC_HIDDEN)]
    return standard + (judged(judge, AMC) if judge else [])


def search_methods(success: float = 1.0) -> list[Method]:
    """Return tree searches, and Best-of-N and AMC that end at the first success as these do. They run only if named.

    Args:
        success: smallest return that counts as a success.
    """
    ending = stopping_methods(best_of_n(BEST_OF_N), amc(AMC), success)
    return [tree_of_thoughts(TREE_OF_THOUGHTS), lats(LATS), *ending]


def prompted_methods(tuned: Tuned | None = None, k: int = LacSettings.k) -> list[Method]:
    """Return ReflAct, Self-Plan and Reflexion, whose policy must follow instructions. They run only if named.

    Args:
        tuned: settings of ReAct, whose temperature they share; None: the shipped ones.
        k: number of turns among which Self-Plan chooses.
    """
    plain = tuned or REACT
    return [reflact(plain), self_plan(replace(plain, k=k)), reflexion(plain)]


def decision_methods(
    critic: str | None = None, k: int = LacSettings.k, oracle: str | None = None, listed: bool = False
) -> list[Method]:
    """Return the methods that decide each step among K candidates. They run only if they are named.

    Args:
        critic: judges candidate actions; None: the comparison's critic.
        k: K.
        oracle: an oracle critic; None: the world has no oracle.
        listed: the world lists its actions.
    """
    voting, deciding = replace(VOTE, k=k), replace(LAC, k=k)
    methods = [
        vote(voting),
        vote(voting, greedy=True),
        *lac_variants(deciding, critic=critic, oracle=oracle),
        *(listed_variants(deciding, critic=critic, oracle=oracle) if listed else []),
    ]
    return without_critic_first(methods)


def tasks(n_tasks: int, band: tuple[int, int] = BAND, *, split: str = "test", first: int = 0) -> list[Task]:
    """Generate crafting tasks of a difficulty band. No model or setting was chosen on tasks of the split "test"."""
    return list(generate_tasks(n_tasks, split, first_seed=first, optimal_steps=band))
