"""Reliability of predictions: bins of prediction and outcome, and errors clustered by task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.types import FloatArray


class Bin(NamedTuple):
    """Samples with similar predictions, and their mean outcome."""

    predicted: float
    """Mean prediction."""
    observed: float
    """Mean outcome; the share of goals that were reached, where outcomes are 0 or 1."""
    standard_error: float
    """Of `observed`, clustered by group (task): samples of a group are not independent. NaN for a single group."""
    n: int
    """Number of samples."""


def reliability(
    predictions: FloatArray,
    outcomes: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    n_bins: int = 10,
    weights: FloatArray | None = None,
) -> list[Bin]:
    """Sort predictions into bins of about equal size; equal predictions share a bin.

    Args:
        predictions: `[n]` predictions.
        outcomes: `[n]` outcomes: booleans, 0 and 1, or real numbers.
        groups: `[n]` the group of each sample, such as its task.
        n_bins: maximum number of bins.
        weights: `[n]` weights of the samples in a bin's means; None weights them equally.

    Returns:
        The bins, by rising prediction.

    >>> bins = reliability(np.array([0.2, 0.2, 0.8, 0.8]), np.array([0, 0, 1, 0]), np.arange(4))
    >>> [(bin.predicted, bin.observed, bin.n) for bin in bins]
    [(0.2, 0.0, 2), (0.8, 0.5, 2)]
    """
    bin_of = bin_numbers(predictions, n_bins)
    bins = []
    for number in np.unique(bin_of):
        rows = bin_of == number
        weight = None if weights is None else weights[rows]
        mean, error = clustered_mean(np.asarray(outcomes, dtype=np.float64)[rows], groups[rows], weight)
        bins.append(Bin(float(np.average(predictions[rows], weights=weight)), mean, error, int(rows.sum())))
    return bins


def bin_numbers(values: FloatArray, n_bins: int = 10) -> npt.NDArray[Any]:
    """`[n]` bin number of each value: bins of about equal size, by rising value; equal values share a bin.

    >>> bin_numbers(np.array([3.0, 1.0, 1.0, 2.0]), 2).tolist()
    [1, 0, 0, 1]
    """
    # A bin ends where the rank of a value, ties at their lowest rank, crosses a multiple of n / n_bins.
    numbers: npt.NDArray[Any] = np.searchsorted(np.sort(values), values) * n_bins // max(len(values), 1)
    return numbers


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean distance of prediction and outcome over the bins, weighted by their size."""
    return float(np.average([abs(bin.predicted - bin.observed) for bin in bins], weights=[bin.n for bin in bins]))


def clustered_mean(
    values: FloatArray, groups: npt.NDArray[Any], weights: FloatArray | None = None
) -> tuple[float, float]:
    """(Weighted) mean of `[n]` values, and its standard error clustered by group."""
    weights = np.ones(len(values)) if weights is None else weights
    mean = float(np.average(values, weights=weights))
    _, inverse = np.unique(groups, return_inverse=True)
    sums = np.bincount(inverse, weights * (values - mean))
    n_groups = len(sums)
    if n_groups < 2:
        return mean, float("nan")
    return mean, float(np.sqrt(n_groups / (n_groups - 1) * np.sum(sums**2)) / weights.sum())


@lru_cache(maxsize=256)
def t_quantile(freedom: float, share: float = 0.975) -> float:
    """Compute a quantile of Student's t, by default that of 97.5%, by integrating its density.

    With t = sqrt(freedom) tan(angle) the density is proportional to cos(angle)^(freedom - 1).

    Args:
        freedom: degrees of freedom, at least 1; not necessarily whole.
        share: probability of a smaller value, at least one half.
    """
    angles = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(math.sqrt(freedom) * np.tan(np.interp(2 * share - 1, below / below[-1], angles)))
