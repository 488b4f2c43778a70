"""The rows that a value model's training reads, and the split of tasks into training and validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import Trajectory


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A window of a trajectory as token ids, with a target at every mark: one row of a batch."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """`[S]` index in `ids` at which each of its states is scored."""
    states: tuple[int, ...]
    """`[S]` number t of each state."""
    targets: tuple[float, ...]
    """`[S]` target of each score."""
    final: tuple[bool, ...]
    """`[S]` whether the state is the end of its trajectory, with no return to come."""
    success: bool
    """Whether the whole return of the trajectory counts as a success."""
    rewards: tuple[float, ...]
    """`[S]` reward of the step that leaves each state; 0 at the end of the trajectory."""
    weights: tuple[float, ...]
    """`[S]` weight of each mark in the loss; 1.0 for objectives without weights."""


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
    trajectories: Sequence[Trajectory], validation_share: float, rng: np.random.Generator
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Split into training and validation trajectories without a common task, because siblings are too similar."""
    held_out = held_out_tasks((trajectory.task.id for trajectory in trajectories), validation_share, rng)
    training = [trajectory for trajectory in trajectories if trajectory.task.id not in held_out]
    validation = [trajectory for trajectory in trajectories if trajectory.task.id in held_out]
    return training, validation
