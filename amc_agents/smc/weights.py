"""Weights in log space, and the potentials that they come from. No other module exponentiates log-weights.

Functions of weights work on the last axis, `[..., N]`, and accept weights of 0 (log-weights of -inf).
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


def potentials(
    returns: FloatArray, predicted: FloatArray, beta: float, success_reward: float | None = None
) -> FloatArray:
    """The log-weight of each particle's state, before any resampling (AMC, eq. 4 and 6).

    A predicted mean (eq. 7) approximates beta log E[exp(G / beta)] (eq. 5), with equality in the limit of large beta.
    If the return is either 0 or `success_reward`, the mean determines eq. 5: p = prediction / success_reward is the
    probability of success, and

        log E[exp(G / beta)] = log(1 - p + p exp(success_reward / beta)).

    Small probabilities then count by their ratio: at a small beta, 0.05 outweighs 0.01 by almost five to one, whereas
    the mean alone, at beta = 0.1, gives three to two.

    Args:
        returns: `[...]` R_t, the return so far; 0 in a run without rewards.
        predicted: `[...]` the predicted future return, 0 at an end; in a run without rewards, the whole return.
        beta: scale of the target pi exp(R / beta), in reward units.
        success_reward: the return of a success if every other return is 0, in reward units; None: returns are
            arbitrary.

    Returns:
        `[...]` phi_t.
    """
    if success_reward is None:
        return (returns + predicted) / beta
    probability = np.clip(predicted / success_reward, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        soft = np.logaddexp(np.log1p(-probability), np.log(probability) + success_reward / beta)
    phi: FloatArray = returns / beta + soft
    return phi


def halving_beta(
    returns: FloatArray, predicted: FloatArray, resolution: float, success_reward: float | None = None
) -> float | None:
    """The largest beta at which the effective sample size of N equally weighted particles falls to N / 2.

    Where no beta does that (two of four particles share the best value), it is the smallest one that is worth having:
    the smallest difference above the resolution then weighs e^5 to 1, and the resolution at most e to 1; by eq. 5, it
    is a twentieth of the success reward, at which weights are all but proportional to the probabilities.

    Args:
        returns: `[N]`, and `predicted`, as for `potentials`.
        predicted: `[N]`.
        resolution: values that differ by no more than this, in reward units, count as equal.
        success_reward: as for `potentials`.

    Returns:
        beta; None: more than half of the values count as equal, or there are fewer than two, so that nothing but noise
        would tell the particles apart.

    >>> halving_beta(np.zeros(4), np.array([0.9, 0.3, 0.2, 0.1]), 0.01) is None
    False
    >>> halving_beta(np.zeros(4), np.array([0.9, 0.3, 0.3, 0.3]), 0.01) is None
    True
    """
    values, half = np.sort(returns + predicted), len(returns) / 2
    slots = np.arange(len(values))
    beyond = np.searchsorted(values, values + resolution * (1 + 1e-6), side="right")  # 0.71 is 0.7 + 0.01 and rounding
    if len(values) < 2 or np.max(beyond - slots) > half:
        return None

    def size(beta: float) -> float:
        return float(ess(potentials(returns, predicted, beta, success_reward)))

    differing = beyond < len(values)
    low = max(float(np.min(values[beyond[differing]] - values[slots[differing]])) / 5, resolution)
    high = float(values[-1] - values[0]) + (success_reward or 0.0)  # Weights then differ by a factor of e at most.
    if success_reward is not None:
        low = success_reward / 20
    if size(low) > half:
        return low
    for _ in range(60):
        middle = float(np.sqrt(low) * np.sqrt(high))
        low, high = (low, middle) if size(middle) > half else (middle, high)
    return low
