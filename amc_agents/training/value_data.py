"""What the value model's training reads: rows of token ids with a target at every mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, Trajectory


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One window of a trajectory: a row of a batch."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """`[S]` index in `ids` where each of its states is scored."""
    states: tuple[int, ...]
    """`[S]` number t of each state."""
    targets: tuple[float, ...]
    """`[S]` what the score should be."""
    final: tuple[bool, ...]
    """`[S]` whether the state is the trajectory's end, where nothing is left to predict."""
    success: bool
    """Whether the trajectory's whole return counts as a success."""


def returns_to_come(trajectory: Trajectory) -> FloatArray:
    """`[T + 1]` G_t = r_{t+1} + ... + r_T for each state (the target of eq. 7); 0 at the last one.

    >>> from amc_agents.types import Step, Task
    >>> steps = (Step("a"), Step("b", reward=0.25), Step("c", reward=1.0))
    >>> returns_to_come(Trajectory(Task("t", ""), steps, done=True)).tolist()
    [1.25, 1.25, 1.0, 0.0]
    """
    rewards = np.array([step.reward for step in trajectory.steps] + [0.0])
    return np.cumsum(rewards[::-1])[::-1].copy()


def target_rows(
    trajectories: Sequence[Trajectory], encoder: Encoder, *, target: str = "future", success: float = 1.0
) -> list[TargetRow]:
    """One row per window of each trajectory.

    Args:
        trajectories: finished ones.
        encoder: renders and tokenizes.
        target: "future": the return still to come; "return": the whole return, at every state.
        success: the least whole return that counts as a success (for the metrics alone).

    Raises:
        ConfigurationError: a trajectory is not finished, so that its return is unknown.
    """
    unfinished = sum(not trajectory.done for trajectory in trajectories)
    if unfinished:
        raise ConfigurationError(
            f"{unfinished} of {len(trajectories)} trajectories are not done: their return is unknown; leave them out"
        )
    found: list[TargetRow] = []
    for trajectory in trajectories:
        to_come, whole = returns_to_come(trajectory), trajectory.return_
        for row in encoder.rows(trajectory):
            targets = tuple(float(to_come[t]) if target == "future" else whole for t in row.states)
            final = tuple(t == len(trajectory.steps) for t in row.states)
            found.append(TargetRow(row.ids, row.marks, row.states, targets, final, whole >= success))
    return found


def split_by_task(
    trajectories: Sequence[Trajectory], validation_share: float, rng: np.random.Generator
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Training and validation trajectories that share no task (siblings are too alike to be held out)."""
    tasks = sorted({trajectory.task.id for trajectory in trajectories})
    held_out = round(validation_share * len(tasks))
    if not 0 < held_out < len(tasks):
        raise ConfigurationError(
            f"a validation share of {validation_share} of {len(tasks)} tasks holds out {held_out}: "
            "at least one task must be on either side; collect more tasks or change the share"
        )
    chosen = {tasks[i] for i in rng.permutation(len(tasks))[:held_out]}
    training = [trajectory for trajectory in trajectories if trajectory.task.id not in chosen]
    validation = [trajectory for trajectory in trajectories if trajectory.task.id in chosen]
    return training, validation


def shuffled_targets(rows: Sequence[TargetRow], rng: np.random.Generator) -> list[TargetRow]:
    """The control: targets change places among states of the same number and kind (final or not).

    What is left to learn is how the return depends on the step alone; a critic that is better than this
    has read the states.
    """
    places: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        for position, key in enumerate(zip(row.states, row.final, strict=True)):
            places.setdefault(key, []).append((index, position))
    targets = [list(row.targets) for row in rows]
    for where in places.values():
        old = [rows[index].targets[position] for index, position in where]
        for (index, position), source in zip(where, rng.permutation(len(where)), strict=True):
            targets[index][position] = old[source]
    return [replace(row, targets=tuple(values)) for row, values in zip(rows, targets, strict=True)]


def batches(rows: Sequence[TargetRow], size: int, rng: np.random.Generator) -> Iterator[list[TargetRow]]:
    """All rows once, in random batches of rows of like length, so that little is padding."""
    order = rng.permutation(len(rows))
    pools = [order[start : start + _POOL * size] for start in range(0, len(order), _POOL * size)]
    found: list[list[TargetRow]] = []
    for pool in pools:
        by_length = sorted(pool, key=lambda index: len(rows[index].ids))
        found += [[rows[i] for i in by_length[start : start + size]] for start in range(0, len(by_length), size)]
    for index in rng.permutation(len(found)):
        yield found[index]


_POOL = 8
"""Batches drawn at once and cut by length."""
