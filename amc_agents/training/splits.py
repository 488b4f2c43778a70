"""Split training data into training and validation by task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np

from amc_agents.errors import ConfigurationError

Item = TypeVar("Item")


def held_out_tasks(tasks: Iterable[str], validation_share: float, rng: np.random.Generator) -> set[str]:
    """Draw the ids of the held-out tasks, independently of the order of `tasks`.

    Raises:
        ConfigurationError: training or validation would have no task.
    """
    known = sorted(set(tasks))
    held_out = round(validation_share * len(known))
    if not 0 < held_out < len(known):
        raise ConfigurationError(
            f"a validation share of {validation_share} of {len(known)} tasks holds out {held_out}: training and "
            "validation need at least one task each; collect more tasks or change the share"
        )
    return {known[index] for index in rng.permutation(len(known))[:held_out]}


def split_by_task(
    items: Sequence[Item],
    validation_share: float,
    rng: np.random.Generator,
    *,
    task_of: Callable[[Item], str] = attrgetter("task.id"),
) -> tuple[list[Item], list[Item]]:
    """Split data into training and validation that share no task, since trajectories of a task are too similar.

    Args:
        items: trajectories, or objects that contain a trajectory.
        validation_share: share of the tasks held out.
        rng: draws the tasks.
        task_of: returns the task id of an item.

    Returns:
        (training, validation), each in the order of `items`.

    Raises:
        ConfigurationError: training or validation would have no task.
    """
    held_out = held_out_tasks(map(task_of, items), validation_share, rng)
    training = [item for item in items if task_of(item) not in held_out]
    validation = [item for item in items if task_of(item) in held_out]
    return training, validation


task_of_trajectory = attrgetter("trajectory.task.id")
"""`task_of` for items with a field `trajectory`."""
