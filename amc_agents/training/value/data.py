"""What the value model's training reads: rows of token ids with a target at every mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.errors import ConfigurationError
from amc_agents.training.value.objective import ExponentialWeights, Objective, targets_of
from amc_agents.types import FloatArray, IntArray, Trajectory


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
    rewards: tuple[float, ...]
    """`[S]` reward of the step that leaves each state; 0 at the trajectory's end."""
    weights: tuple[float, ...]
    """`[S]` weight of each mark in the loss; 1.0 where the objective has none."""


def target_rows(
    trajectories: Sequence[Trajectory], encoder: Encoder, objective: Objective | None = None, *, success: float = 1.0
) -> list[TargetRow]:
    """One row per window of each trajectory, in order.

    Args:
        trajectories: finished ones; together they are the set over which eq. 5 and the weights average.
        encoder: renders and tokenizes.
        objective: what is learnt; None: eq. 7.
        success: the least whole return that counts as a success (for the metrics alone).

    Raises:
        ConfigurationError: a trajectory is not finished, or its returns do not suit the objective.
    """
    objective = objective or Objective()
    targets = targets_of(trajectories, objective)
    weights = [np.ones(len(one)) for one in targets]
    if objective.loss == "weighted" and objective.beta is not None:
        of_all = ExponentialWeights(objective.beta)
        for one in targets:
            of_all.add(one)
        weights = [of_all.of(one) for one in targets]
    found: list[TargetRow] = []
    for trajectory, goals, weight in zip(trajectories, targets, weights, strict=True):
        found += windowed_rows(trajectory, encoder, goals, weight, success=success)
    return found


def windowed_rows(
    trajectory: Trajectory, encoder: Encoder, targets: FloatArray, weights: FloatArray, *, success: float = 1.0
) -> list[TargetRow]:
    """The rows of one trajectory: `[T + 1]` targets and weights cut into its windows; each state is in exactly one."""
    rewards = [step.reward for step in trajectory.steps] + [0.0]
    end, good = len(trajectory.steps), trajectory.return_ >= success
    found = []
    for row in encoder.rows(trajectory):
        chosen = list(row.states)
        found.append(
            TargetRow(
                row.ids, row.marks, row.states,
                targets=tuple(targets[chosen].tolist()),
                final=tuple(t == end for t in row.states),
                success=good,
                rewards=tuple(rewards[t] for t in row.states),
                weights=tuple(weights[chosen].tolist()),
            )
        )  # fmt: skip
    return found


def held_out_tasks(tasks: Iterable[str], validation_share: float, rng: np.random.Generator) -> set[str]:
    """The ids of the tasks that are held out, whatever order the tasks come in.

    Raises:
        ConfigurationError: none would be left on one side.
    """
    known = sorted(set(tasks))
    held_out = round(validation_share * len(known))
    if not 0 < held_out < len(known):
        raise ConfigurationError(
            f"a validation share of {validation_share} of {len(known)} tasks holds out {held_out}: "
            "at least one task must be on either side; collect more tasks or change the share"
        )
    return {known[i] for i in rng.permutation(len(known))[:held_out]}


def split_by_task(
    trajectories: Sequence[Trajectory], validation_share: float, rng: np.random.Generator
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Training and validation trajectories that share no task (siblings are too alike to be held out)."""
    chosen = held_out_tasks((trajectory.task.id for trajectory in trajectories), validation_share, rng)
    training = [trajectory for trajectory in trajectories if trajectory.task.id not in chosen]
    validation = [trajectory for trajectory in trajectories if trajectory.task.id in chosen]
    return training, validation


def shuffled_targets(rows: Sequence[TargetRow], rng: np.random.Generator) -> list[TargetRow]:
    """The control: targets, and their weights, change places among states of the same number.

    What is left to learn is how the return depends on the step alone; a critic that is better than this has read the
    states. Final states change places with all others: were they kept apart, what success looks like could be
    learnt from those that end early, and states close to it told from the rest.
    """
    states = np.array([t for row in rows for t in row.states])
    source = shuffled_places(states, rng)
    cuts = np.cumsum([len(row.marks) for row in rows])[:-1]
    targets = np.split(np.array([one for row in rows for one in row.targets])[source], cuts)
    weights = np.split(np.array([one for row in rows for one in row.weights])[source], cuts)
    return [
        replace(row, targets=tuple(goals.tolist()), weights=tuple(weight.tolist()))
        for row, goals, weight in zip(rows, targets, weights, strict=True)
    ]


def shuffled_places(states: IntArray, rng: np.random.Generator) -> IntArray:
    """`[S]` for each place, the place whose target it gets: one of the same state number.

    Args:
        states: `[S]` number t of the state at each place.
        rng: draws the permutations.
    """
    source = np.arange(len(states))
    for number in np.unique(states):
        where = np.flatnonzero(states == number)
        source[where] = where[rng.permutation(len(where))]
    return source
