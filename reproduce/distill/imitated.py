"""What a policy imitates: a task's trajectories, with shares that sum to 1 within the task.

The weighted log-likelihood of the agent's turns is highest for the policy whose turns at each state are those of the
weighted trajectories that pass through it. With the weights of many particles of AMC, or many independent trajectories
weighted by exp(R / beta), this is the tilted policy: pi's turns, conditioned on the return.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from amc_agents.smc import normalised
from amc_agents.training.data_checks import SEARCH
from amc_agents.training.dataset import LoggedTrajectory
from amc_agents.types import Trajectory

T = TypeVar("T", bound=Hashable)
LEAST = 0.01
"""Trajectories with a smaller share of their task are left out."""


class Imitated(NamedTuple):
    """A trajectory to imitate."""

    trajectory: Trajectory
    share: float
    """Of its task: the shares of a task sum to 1."""


def imitated(records: Iterable[LoggedTrajectory], *, beta: float, success: float) -> dict[str, list[Imitated]]:
    """Weight the trajectories of each task that has a success.

    Args:
        records: trajectories with known outcomes.
        beta: independent trajectories are weighted by exp(R / beta). What a search drew by its weights counts equally.
        success: tasks without a return of at least this are left out.

    Returns:
        Task -> its distinct trajectories.
    """
    tasks: dict[str, list[LoggedTrajectory]] = defaultdict(list)
    for record in records:
        tasks[record.trajectory.task.id].append(record)
    return {
        task: _of_task(of_task, beta)
        for task, of_task in tasks.items()
        if max(record.trajectory.return_ for record in of_task) >= success
    }


def shares(trajectories: Sequence[T], log_weights: Sequence[float], least: float = LEAST) -> dict[T, float]:
    """Return each distinct trajectory's share of its task, which sum to 1.

    Args:
        trajectories: of one task.
        log_weights: their log-weights.
        least: smaller shares are left out.
    """
    sums: dict[T, float] = defaultdict(float)
    for trajectory, share in zip(trajectories, normalised(np.array(log_weights)).tolist(), strict=True):
        sums[trajectory] += share
    kept = {trajectory: share for trajectory, share in sums.items() if share >= least}
    return {trajectory: share / sum(kept.values()) for trajectory, share in kept.items()}


def _of_task(records: Sequence[LoggedTrajectory], beta: float) -> list[Imitated]:
    tilts = [0.0 if _was_drawn(record) else record.trajectory.return_ / beta for record in records]
    texts = [
        tuple((step.thought, step.action, step.observation) for step in record.trajectory.steps) for record in records
    ]
    whole = dict(zip(texts, (record.trajectory for record in records), strict=True))
    return [Imitated(whole[text], share) for text, share in shares(texts, tilts).items()]


def _was_drawn(record: LoggedTrajectory) -> bool:
    return SEARCH in json.loads(record.settings)
