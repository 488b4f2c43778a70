"""Baselines of other papers with the trained ScienceWorld policy: greedy play, a vote over actions, and tree searches.

    python reproduce/worlds/find_baselines.py TASKS VALUE FOLDER METHODS...

TASKS is a file of `amc_agents_scienceworld.find_agent`, and VALUE a critic of `word_value.py`, which the tree searches
ask. They end at their first success. Results are stored as `amc bench` stores them; a second call goes on.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from amc_agents_scienceworld.expert_agent import ScienceWorldById
from amc_agents_scienceworld.find_agent import MAX_TOKENS, MODEL, horizon
from word_value import WordValue

from amc_agents.bench.methods import Tuned, lats, react_greedy, tree_of_thoughts, vote
from amc_agents.bench.own.tasks import read_tasks
from amc_agents.bench.runner import Comparison, compare
from amc_agents.models.embedded import EmbeddedChatModel

SAMPLED = Tuned(temperature=1.0, k=5)
METHODS = [
    react_greedy(),
    vote(SAMPLED),
    tree_of_thoughts(SAMPLED, width=2, samples=5),
    lats(SAMPLED, max_calls=200, samples=5),
]
"""A vote makes as many calls as 5 particles, and a tree search at most as many as 10."""


def policy(temperature: float) -> EmbeddedChatModel:
    """Return the shipped policy."""
    return EmbeddedChatModel(model=str(MODEL), temperature=temperature, max_tokens=MAX_TOKENS)


def main(tasks: str, value: str, folder: str, names: list[str]) -> None:
    """Play every task by the methods of these names."""
    comparison = Comparison(
        policy=policy,
        environment=ScienceWorldById,
        tasks=read_tasks(tasks),
        methods=[method for method in METHODS if method.name in names],
        critic=WordValue(value),
        horizon=horizon,
        # The tree searches end at this return, a sum of floating-point rewards.
        success=1.0 - 1e-6,
        about={"critic_file": Path(value).name, "tasks": Path(tasks).name},
    )
    asyncio.run(compare(comparison, folder, resume=True, n_concurrent=1))


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
