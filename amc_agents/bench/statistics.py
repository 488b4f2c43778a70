"""Means over tasks and paired differences of two methods.

A task is the unit: seeds of one task are averaged first, so that no task counts twice and errors are those over
tasks. Nothing is averaged over nothing: an empty input is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray

Measured = Mapping[tuple[str, int], float]
"""(task, seed) -> a score."""

N_RESAMPLES = 10_000
ENOUGH_TASKS = 50
"""From here on the interval of a paired difference is a bootstrap's; below, a percentile bootstrap is too narrow."""
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
    """Lower end of the 95% interval over tasks: percentile bootstrap, Student's t below `ENOUGH_TASKS` tasks."""
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

    From 50 tasks on the interval is a percentile bootstrap's, which follows skewed differences. With fewer tasks it
    would be too narrow (of normal differences it covers 84% at 5 tasks and 93% at 20), so the interval is Student's t,
    which covers 95% of normal differences at any number of tasks. No interval is reliable where few tasks show a
    difference at all: if 1 task in 10 does, both cover 80% at 20 tasks. Look at more tasks then.

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
    mean, error = float(differences.mean()), _standard_error(differences)
    assert error is not None
    if len(differences) < ENOUGH_TASKS:
        half = t_quantile(len(differences) - 1) * error
        low, high = mean - half, mean + half
    else:
        means = bootstrap_means(differences, np.random.default_rng(seed), n_resamples)
        low, high = map(float, np.percentile(means, [2.5, 97.5]))
    return Paired(mean, low, high, error, len(differences), len({key[1] for key in common}))


@lru_cache(maxsize=256)
def t_quantile(freedom: float) -> float:
    """The 97.5% quantile of Student's t, by integrating its density.

    With t = sqrt(freedom) tan(angle) the density is proportional to cos(angle)^(freedom - 1).

    Args:
        freedom: degrees of freedom, at least 1; not necessarily whole.
    """
    angles = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(math.sqrt(freedom) * np.tan(np.interp(0.95, below / below[-1], angles)))


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
