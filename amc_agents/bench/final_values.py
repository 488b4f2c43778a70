"""How well the values of final trajectories predict and rank their returns, from the stored runs of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.bench.records import RunResult
from amc_agents.bench.scores import Particles
from amc_agents.bench.statistics import Estimate, estimate
from amc_agents.critics.reliability import Bin, calibration_error, reliability
from amc_agents.training.metrics import auc


class FinalValues(NamedTuple):
    """The values of a method's final trajectories against their returns."""

    bins: list[Bin]
    """Reliability of the values as predictions of the return; errors are clustered by task."""
    calibration_error: float
    auc: Estimate | None
    """Probability that a success has a higher value than a failure of the same run, over tasks; None if no run has
    both."""
    best: list[Estimate]
    """`[M]` mean return of the k trajectories with the highest values, for k = 1 to the smallest population."""
    trajectories: int


def final_values(records: Sequence[RunResult], success: float) -> FinalValues | None:
    """Evaluate the values of a method's final trajectories.

    Args:
        records: the runs of a method.
        success: minimum return of a success.

    Returns:
        None if the values mean nothing: single trajectories, or a critic that does not predict the whole return.
    """
    runs = [(run, run.particles) for run in records if run.particles and run.scores.deployable is not None]
    runs = [(run, particles) for run, particles in runs if len(particles.returns) > 1]
    if not runs or all(len(set(particles.values)) == 1 for _, particles in runs):
        return None
    values = np.concatenate([particles.values for _, particles in runs])
    returns = np.concatenate([particles.returns for _, particles in runs])
    tasks = np.repeat([run.task for run, _ in runs], [len(particles.values) for _, particles in runs])
    bins = reliability(values, returns, tasks)
    areas = {(run.task, run.seed): _auc(particles, success) for run, particles in runs}
    known = {key: area for key, area in areas.items() if area is not None}
    depth = min(len(particles.returns) for _, particles in runs)
    best = [
        estimate({(run.task, run.seed): _mean_of_best(particles, k) for run, particles in runs})
        for k in range(1, depth + 1)
    ]
    return FinalValues(bins, calibration_error(bins), estimate(known) if known else None, best, len(values))


def _auc(particles: Particles, success: float) -> float | None:
    return auc(np.array(particles.values), np.array(particles.returns) >= success)


def _mean_of_best(particles: Particles, k: int) -> float:
    order = np.argsort(-np.array(particles.values), kind="stable")
    return float(np.array(particles.returns)[order[:k]].mean())
