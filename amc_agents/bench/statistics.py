"""Means over tasks, and paired differences of two methods.

The task is the unit: the seeds of a task are averaged first, so that no task counts twice and standard errors are over
tasks. An empty input is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from amc_agents.critics.reliability import t_quantile as t_quantile
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray

Measured = Mapping[tuple[str, int], float]
"""(task, seed) -> a score."""

N_RESAMPLES = 10_000
ENOUGH_TASKS = 50
"""From this number of tasks on, intervals come from a percentile bootstrap, which is too narrow for fewer tasks."""
_BLOCK = 2_000_000
"""Number of draws held in memory at a time: 16 MB."""


class Estimate(NamedTuple):
    """A mean over tasks."""

    mean: float
    standard_error: float | None
    """Over tasks; None with a single task."""
    tasks: int
    seeds: int
    """Number of different seeds."""


class HasStandardError(Protocol):
    """A mean over tasks: an `Estimate`, or a mean as results store it."""

    @property
    def mean(self) -> float:
        """The mean."""
        ...

    @property
    def standard_error(self) -> float | None:
        """Over tasks; None with a single task."""
        ...

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        ...


class Paired(NamedTuple):
    """The difference a - b over the (task, seed) pairs that both have."""

    difference: float
    low: float
    """Lower end of the 95% interval over tasks: percentile bootstrap, Student's t below `ENOUGH_TASKS` tasks."""
    high: float
    standard_error: float
    """Standard error of the mean difference over tasks, as in a t-test."""
    tasks: int
    seeds: int


def estimate(measured: Measured) -> Estimate:
    """Compute the mean over tasks; the seeds of a task are averaged first.

    Raises:
        ConfigurationError: `measured` is empty.
    """
    if not measured:
        raise ConfigurationError("there is no task to average over: run some tasks first")
    per_task = _task_means(measured)
    return Estimate(float(per_task.mean()), _standard_error(per_task), len(per_task), _seeds(measured))


def paired(a: Measured, b: Measured, *, seed: int = 0, n_resamples: int = N_RESAMPLES) -> Paired:
    """Compute the mean difference a - b over the common tasks, with a 95% interval over tasks.

    From 50 tasks on, the interval comes from a percentile bootstrap, which follows skewed differences. With fewer tasks
    the bootstrap is too narrow (for normal differences it covers 84% at 5 tasks and 93% at 20). The interval is then
    Student's t, which covers 95% of normal differences at any number of tasks. No interval is reliable if few tasks
    show a difference at all: if 1 task in 10 does, both cover 80% at 20 tasks. Run more tasks in that case.

    Args:
        a: scores of a method.
        b: scores of the other method; (task, seed) pairs that only one method has are left out.
        seed: seed of the bootstrap.
        n_resamples: number of resamples of the bootstrap.

    Raises:
        ConfigurationError: fewer than two common tasks.
    """
    common = sorted(a.keys() & b.keys())
    differences = _task_means({key: a[key] - b[key] for key in common}) if common else np.zeros(0)
    if len(differences) < 2:
        raise ConfigurationError(f"a paired interval needs at least 2 common tasks, got {len(differences)}")
    mean, error = float(differences.mean()), _standard_error(differences)
    assert error is not None
    if len(differences) < ENOUGH_TASKS:
        half = t_quantile(len(differences) - 1) * error
        low, high = mean - half, mean + half
    else:
        means = bootstrap_means(differences, np.random.default_rng(seed), n_resamples)
        low, high = map(float, np.percentile(means, [2.5, 97.5]))
    return Paired(mean, low, high, error, len(differences), len({key[1] for key in common}))


def mean_interval(mean: HasStandardError) -> tuple[float, float] | None:
    """Return the 95% interval of a mean over tasks, by Student's t; None with a single task.

    >>> [round(end, 2) for end in mean_interval(Estimate(0.5, 0.1, 10, 1))]
    [0.27, 0.73]
    """
    if mean.standard_error is None or mean.tasks < 2:
        return None
    half = t_quantile(mean.tasks - 1) * mean.standard_error
    return mean.mean - half, mean.mean + half


def bootstrap_means(values: FloatArray, rng: np.random.Generator, n_resamples: int) -> FloatArray:
    """Return `[n_resamples]` means of resamples of `[n]` values with replacement."""
    block = max(1, _BLOCK // len(values))
    sizes = [min(block, n_resamples - start) for start in range(0, n_resamples, block)]
    return np.concatenate([values[rng.integers(len(values), size=(size, len(values)))].mean(axis=1) for size in sizes])


def _task_means(measured: Measured) -> FloatArray:
    """Return `[tasks]` means over seeds, in the order of the tasks' names."""
    by_task: dict[str, list[float]] = {}
    for (task, _), score in measured.items():
        by_task.setdefault(task, []).append(score)
    return np.array([math.fsum(by_task[task]) / len(by_task[task]) for task in sorted(by_task)])


def _standard_error(values: FloatArray) -> float | None:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _seeds(measured: Measured) -> int:
    return len({seed for _, seed in measured})
