"""The worlds, as the core's registry knows them (entry points of the group `amc_agents.worlds`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from amc_agents.envs.registry import WorldSpec
from amc_agents.types import Task
from amc_agents_exploration.worlds import (
    ExplorationWorld,
    bandit_task,
    informative_bandit_task,
    load_words,
    lock_task,
    riverswim_task,
    wordle_task,
)

WORDS_VARIABLE = "AMC_WORDS"
"""Environment variable with the path of Wordle's word list, one word per line; default: the package's small list."""


def _exploration(task: Callable[[int, str], Task], *, horizon: int, n_episodes: int) -> WorldSpec:
    # Splits have separate random streams, but a small world (720 codes of a lock) may hide the same code in both.
    def tasks(n_tasks: int, split: str, first: int) -> Iterator[Task]:
        return (task(seed, split) for seed in range(first, first + n_tasks))

    return WorldSpec(make=ExplorationWorld, tasks=tasks, horizon=horizon, n_episodes=n_episodes)


def _wordle_tasks(n_tasks: int, split: str, first: int) -> Iterator[Task]:
    path = os.environ.get(WORDS_VARIABLE)
    words = load_words(path) if path else None
    return (wordle_task(seed, split, words=words) for seed in range(first, first + n_tasks))


BANDIT = _exploration(bandit_task, horizon=1, n_episodes=100)
INFORMATIVE_BANDIT = _exploration(informative_bandit_task, horizon=1, n_episodes=10)
COMBINATION_LOCK = _exploration(lock_task, horizon=3, n_episodes=8)
WORDLE = WorldSpec(make=ExplorationWorld, tasks=_wordle_tasks, horizon=5, n_episodes=6)
RIVERSWIM = _exploration(riverswim_task, horizon=6, n_episodes=35)
RIVERSWIM_4 = _exploration(partial(riverswim_task, n_caves=4, horizon=20), horizon=20, n_episodes=35)
