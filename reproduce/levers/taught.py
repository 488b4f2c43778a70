"""A value model that learns the planner's grade of every state, instead of the outcome of its trajectory.

The planner knows the worlds of the training tasks. At run time the critic reads the transcript alone, as every value
model does: the labels are privileged information of the training only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np
from draws import Node
from noise import grade

from amc_agents.training.value import row_building
from amc_agents.training.value.objective import Objective
from amc_agents.types import Environment, FloatArray, Task, Trajectory

Key = tuple[str, tuple[str, ...]]


@contextmanager
def planner_targets(
    trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], make: Callable[[], Environment]
) -> Iterator[None]:
    """Train on the planner's grades.

    Args:
        trajectories: of the training.
        tasks: id -> task, with its payload.
        make: creates a world.
    """
    grades = asyncio.run(_grades(trajectories, tasks, make))

    def targets(trajectory: Trajectory, _: Objective) -> FloatArray:
        keys = _keys(trajectory)
        return np.array([*(grades[key] for key in keys[:-1]), float(trajectory.return_ > 0)])

    with mock.patch.object(row_building, "state_returns", targets):
        yield


async def _grades(
    trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], make: Callable[[], Environment]
) -> dict[Key, float]:
    """Grade every unfinished state by playing its actions again."""
    grades: dict[Key, float] = {}
    for trajectory in trajectories:
        task, keys = tasks[trajectory.task.id], _keys(trajectory)
        if all(key in grades for key in keys[:-1]):
            continue
        world = make()
        await world.reset(task)
        past = Trajectory(task)
        for key, step in zip(keys[:-1], trajectory.steps, strict=True):
            if key not in grades:
                grades[key] = grade(Node(past, world, ()))
            answer = await world.step(step.action)
            if answer.observation != step.observation:
                raise ValueError(f"{task.id}: {step.action!r} answered {answer.observation!r}, not as recorded")
            past = past.extended(step)
    return grades


def _keys(trajectory: Trajectory) -> list[Key]:
    actions = tuple(step.action for step in trajectory.steps)
    return [(trajectory.task.id, actions[:length]) for length in range(len(actions) + 1)]
