"""What is known of others' steps by who sees the whole room: labels for a verdict critic, and a perfect critic.

A step is worth what it saves: how many steps the mission needs before and after it.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from minigrid.minigrid_env import MiniGridEnv

from amc_agents.errors import ConfigurationError
from amc_agents.training.verdict.labels import Label
from amc_agents.types import FloatArray, Task, Trajectory
from amc_agents_minigrid.distance import walking_steps
from amc_agents_minigrid.expert import Expert
from amc_agents_minigrid.levels import make_level
from amc_agents_minigrid.tasks import task_of
from amc_agents_minigrid.world import ACTIONS, BabyAITask, act, copied

STEPS_AT_MOST = 60
"""An expert that has not got there by then is taken never to get there."""
WASTED = 5.0
"""Log-odds that a wasted step costs: more than the prior of any candidate can outweigh at K <= 100."""


@dataclass(frozen=True)
class Reached:
    """Where some actions lead to in a task."""

    level: MiniGridEnv
    """Never acted on: a copy is."""
    over: bool
    """The world has ended the episode."""
    left: int
    """Steps that the mission still needs; 0 at its end."""


class ExpertLabels:
    """GOOD where the mission needs fewer steps after a step than before it, else BAD; for `amc train verdict`."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """`[T]` labels. Raises `ConfigurationError` where the task is none of this package's."""
        left = [one.left for one in _passed(trajectory)]
        return ["GOOD" if after < before else "BAD" for before, after in pairwise(left)]


class ExpertCritic:
    """Q of a trajectory: how many steps of it were wasted. An oracle: it knows the whole room."""

    predicts = "return"

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` -5 for each wasted step; 0 where there is none."""
        return np.array([-WASTED * _wasted(one) for one in trajectories], dtype=np.float64)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` the same as a number in (0, 1]."""
        return np.exp(await self.log_odds(trajectories))


def steps_left(level: MiniGridEnv) -> int:
    """Steps to the mission's end, the level's own limit aside; `STEPS_AT_MOST` where it is lost.

    By exact walks where they lead there, else by the expert's own way.
    """
    walk = walking_steps(level)
    if walk is not None:
        return min(walk, STEPS_AT_MOST)
    level = copied(level)
    level.step_count, level.max_steps = 0, STEPS_AT_MOST + 1
    expert = Expert(level)
    for number in range(1, STEPS_AT_MOST):
        _, reward, terminated, truncated, _ = level.step(ACTIONS[expert.turn().action])
        if terminated or truncated:
            return number if float(reward) > 0 else STEPS_AT_MOST
    return STEPS_AT_MOST


def _wasted(trajectory: Trajectory) -> int:
    passed = _passed(trajectory)
    return len(trajectory.steps) + passed[-1].left - passed[0].left


def _passed(trajectory: Trajectory) -> list[Reached]:
    """`[T + 1]` states that a trajectory has passed through."""
    # Difficulty is no part of what a state is: tasks read from a dataset lack it.
    task = replace(_payload(trajectory.task), expert_steps=None)
    actions = tuple(step.action for step in trajectory.steps)
    return [_reached(task, actions[:length]) for length in range(len(actions) + 1)]


@lru_cache(maxsize=20_000)
def _reached(task: BabyAITask, actions: tuple[str, ...]) -> Reached:
    if not actions:
        level = make_level(task.level, task.seed, task.horizon)
        return Reached(level, False, steps_left(level))
    before = _reached(task, actions[:-1])
    if before.over:
        return before
    level = copied(before.level)
    _, reward, terminated, truncated = act(level, actions[-1])
    if terminated:
        return Reached(level, True, 0 if reward > 0 else STEPS_AT_MOST)
    return Reached(level, truncated, steps_left(level))


def _payload(task: Task) -> BabyAITask:
    # A dataset keeps no payload; the task's name says what it was.
    payload = task_of(task.id).payload if task.payload is None else task.payload
    if not isinstance(payload, BabyAITask):
        raise ConfigurationError(f"labels by the BabyAI expert need this package's tasks, got {task.id!r}")
    return payload
