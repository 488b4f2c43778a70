"""Weights in log space. No other module exponentiates log-weights.

Every function works on the last axis, `[..., N]`, and accepts weights of 0 (log-weights of -inf).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amc_agents.errors import AllWeightsZero, PopulationError
from amc_agents.types import FloatArray

BoolArray = npt.NDArray[np.bool_]


def log_sum_exp(log_weights: FloatArray) -> FloatArray:
    """Log of the sum of weights, without overflow.

    Args:
        log_weights: `[..., N]` log-weights; -inf is a weight of 0.

    Returns:
        `[...]` log-sums; -inf where every weight is 0.
    """
    largest = np.max(log_weights, axis=-1, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0.0)  # -inf - -inf would be nan
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        total: FloatArray = np.log(np.sum(np.exp(log_weights - shift), axis=-1)) + shift[..., 0]
    return total


def log_mean_exp(log_weights: FloatArray) -> FloatArray:
    """Log of the mean weight, weights of 0 included in the divisor.

    Args:
        log_weights: `[..., N]` log-weights.

    Returns:
        `[...]` log-means; -inf where every weight is 0.
    """
    mean: FloatArray = log_sum_exp(log_weights) - np.log(np.shape(log_weights)[-1])
    return mean


def normalised(log_weights: FloatArray) -> FloatArray:
    """Probabilities proportional to the weights.

    Args:
        log_weights: `[..., N]` unnormalised log-weights.

    Returns:
        `[..., N]` probabilities, exactly 0 where the weight is 0.

    Raises:
        AllWeightsZero: where every weight of a population is 0.
        PopulationError: where a log-weight is NaN or +inf.
    """
    total = log_sum_exp(log_weights)
    if np.any(np.isneginf(total)):
        raise AllWeightsZero(np.shape(log_weights)[-1], "normalisation")
    if not np.all(np.isfinite(total)):
        raise PopulationError("a log-weight is NaN or +inf; it must be finite, or -inf for a weight of 0")
    probabilities: FloatArray = np.exp(log_weights - total[..., np.newaxis])
    return probabilities


def ess(log_weights: FloatArray) -> FloatArray:
    """Effective sample size, 1 / sum(p^2): N for equal weights, 1 if a single particle has all the weight.

    Args:
        log_weights: `[..., N]` unnormalised log-weights.

    Returns:
        `[...]` between 1 and N.

    Raises:
        AllWeightsZero: where every weight of a population is 0.
    """
    size: FloatArray = 1.0 / np.sum(np.square(normalised(log_weights)), axis=-1)
    return size
