"""Labels for a verdict critic, and an oracle critic, from full knowledge of the room.

The worth of a step is the reduction of the number of steps that the mission still needs.
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
from amc_agents.training.verdict.labelling import Label
from amc_agents.types import FloatArray, Task, Trajectory
from amc_agents_minigrid.distance import walking_steps
from amc_agents_minigrid.expert import Expert
from amc_agents_minigrid.levels import make_level
from amc_agents_minigrid.tasks import task_of
from amc_agents_minigrid.world import ACTIONS, BabyAITask, act, copied

STEPS_AT_MOST = 60
"""Step limit of the expert; a mission that it does not complete within this limit counts as lost."""
WASTED = 5.0
"""Log-odds of a wasted step, large enough to outweigh any prior over K <= 100 candidates."""


@dataclass(frozen=True)
class Reached:
    """The state of a task after some actions."""

    level: MiniGridEnv
    """Never modified; actions are executed on a copy."""
    over: bool
    """True if the world has ended the episode."""
    left: int
    """Number of steps that the mission still needs; 0 at its end."""


class ExpertLabels:
    """Labels for `amc train verdict`: GOOD if the mission needs fewer steps after a step than before it, else BAD."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """`[T]` labels. Raises `ConfigurationError` if the task is not from this package."""
        left = [state.left for state in _states(trajectory)]
        return ["GOOD" if after < before else "BAD" for before, after in pairwise(left)]


class ExpertCritic:
    """An oracle that scores a trajectory by its number of wasted steps, with full knowledge of the room."""

    predicts = "return"

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` -5 times the number of wasted steps."""
        return np.array([-WASTED * _wasted(trajectory) for trajectory in trajectories], dtype=np.float64)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` exp of the log-odds, in (0, 1]."""
        return np.exp(await self.log_odds(trajectories))


def steps_left(level: MiniGridEnv) -> int:
    """Number of steps that the mission needs, ignoring the level's step limit; `STEPS_AT_MOST` if it is lost.

    Computed by exact shortest paths if walking suffices, and otherwise by running the expert.
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
    states = _states(trajectory)
    return len(trajectory.steps) + states[-1].left - states[0].left


def _states(trajectory: Trajectory) -> list[Reached]:
    """`[T + 1]` states of a trajectory."""
    # Ignore the difficulty, which tasks from a dataset lack.
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
    # A dataset stores no payload, but the task's id determines it.
    payload = task_of(task.id).payload if task.payload is None else task.payload
    if not isinstance(payload, BabyAITask):
        raise ConfigurationError(f"labels by the BabyAI expert need this package's tasks, got {task.id!r}")
    return payload
