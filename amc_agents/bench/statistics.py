"""Means over tasks and paired differences of two methods.

A task is the unit: seeds of one task are averaged first, so that no task counts twice and errors are those over
tasks. Nothing is averaged over nothing: an empty input is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray

Measured = Mapping[tuple[str, int], float]
"""(task, seed) -> a score."""

N_RESAMPLES = 10_000
_BLOCK = 2_000_000
"""Draws held at a time: 16 MB."""


class Estimate(NamedTuple):
    """A mean over tasks."""

    mean: float
    standard_error: float | None
    """Over tasks; None with a single task, of which no spread is known."""
    tasks: int
    seeds: int
    """Different seeds that took part."""


class Paired(NamedTuple):
    """The difference a - b over the (task, seed) pairs that both have."""

    difference: float
    low: float
    """Lower end of the 95% interval: percentile bootstrap over tasks."""
    high: float
    standard_error: float
    """Of the mean difference over tasks, as a t-test has it."""
    tasks: int
    seeds: int


def estimate(measured: Measured) -> Estimate:
    """Mean over tasks, seeds averaged within each.

    Raises:
        ConfigurationError: nothing was measured.
    """
    if not measured:
        raise ConfigurationError("a mean over no task was asked for: run some tasks first")
    per_task = _task_means(measured)
    return Estimate(float(per_task.mean()), _standard_error(per_task), len(per_task), _seeds(measured))


def paired(a: Measured, b: Measured, *, seed: int = 0, n_resamples: int = N_RESAMPLES) -> Paired:
    """The mean difference a - b over the tasks that both have, with a 95% interval over tasks.

    Args:
        a: one method's scores.
        b: another's; (task, seed) pairs that only one of them has are left out.
        seed: of the bootstrap.
        n_resamples: of the bootstrap.

    Raises:
        ConfigurationError: fewer than two common tasks, of which no interval could be given.
    """
    common = sorted(a.keys() & b.keys())
    differences = _task_means({key: a[key] - b[key] for key in common}) if common else np.zeros(0)
    if len(differences) < 2:
        raise ConfigurationError(f"a paired interval needs at least 2 common tasks, got {len(differences)}")
    means = bootstrap_means(differences, np.random.default_rng(seed), n_resamples)
    low, high = np.percentile(means, [2.5, 97.5])
    error = _standard_error(differences)
    assert error is not None
    return Paired(
        float(differences.mean()), float(low), float(high), error, len(differences), len({key[1] for key in common})
    )


def crossed_interval(differences: FloatArray, *, seed: int = 0, n_resamples: int = N_RESAMPLES) -> tuple[float, float]:
    """95% interval of a mean over tasks AND training seeds, both resampled: what another training could have given.

    Args:
        differences: `[tasks, K]` paired differences, K the models that were trained with seeds of their own. With the
            few seeds that one can afford, the interval is rough.
        seed: of the bootstrap.
        n_resamples: of the bootstrap.

    Raises:
        ConfigurationError: fewer than two tasks, or fewer than two training seeds.
    """
    n_tasks, n_seeds = differences.shape
    if n_tasks < 2 or n_seeds < 2:
        raise ConfigurationError(f"resampling tasks and training seeds needs 2 of each, got {n_tasks} and {n_seeds}")
    rng = np.random.default_rng(seed)
    tasks = rng.multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), size=n_resamples) / n_tasks
    seeds = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=n_resamples) / n_seeds
    low, high = np.percentile(((tasks @ differences) * seeds).sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def bootstrap_means(values: FloatArray, rng: np.random.Generator, n_resamples: int) -> FloatArray:
    """`[n_resamples]` means of resamples of `[n]` values with replacement."""
    block = max(1, _BLOCK // len(values))
    sizes = [min(block, n_resamples - start) for start in range(0, n_resamples, block)]
    return np.concatenate([values[rng.integers(len(values), size=(size, len(values)))].mean(axis=1) for size in sizes])


def _task_means(measured: Measured) -> FloatArray:
    """`[tasks]` means over seeds, tasks in order of their names."""
    by_task: dict[str, list[float]] = {}
    for (task, _), score in measured.items():
        by_task.setdefault(task, []).append(score)
    return np.array([math.fsum(by_task[task]) / len(by_task[task]) for task in sorted(by_task)])


def _standard_error(values: FloatArray) -> float | None:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _seeds(measured: Measured) -> int:
    return len({seed for _, seed in measured})
