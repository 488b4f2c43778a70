"""Information-directed sampling: the distribution over actions with the least information ratio (LLM-PSRL, 6.2.2).

The ratio is (expected regret)^2 / expected information gain. It is convex in the distribution, and some minimum has at
most two actions. The minimum over a pair has a closed form, so no grid search is needed. `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.errors import DecisionError
from amc_agents.types import FloatArray

_BETTER = 1e-12
"""Relative margin by which a mixture must improve on the best single action."""


class InformationDirected(NamedTuple):
    """A distribution over actions and its information ratio."""

    probabilities: FloatArray
    """`[A]` probabilities of the actions; at most two are positive."""
    ratio: float
    """Squared regret per unit of information; inf if some regret is expected but no information."""


def least_information_ratio(regrets: npt.ArrayLike, gains: npt.ArrayLike) -> InformationDirected:
    """Minimise (E regret)^2 / E gain exactly.

    Degenerate cases: an action without regret has ratio 0 for any gain, and among several the one with the largest gain
    is taken. If no action has a gain, the action with the least regret is taken. Ties go to the first action.

    Args:
        regrets: `[A]` expected regret of each action, at least 0.
        gains: `[A]` expected information about optimal behaviour, at least 0, in any unit.

    Raises:
        DecisionError: the shapes differ, there is no action, or a number is negative or not finite.

    >>> least_information_ratio([0.2, 0.6], [0.1, 1.0]).probabilities.round(3).tolist()
    [0.722, 0.278]
    """
    regret, gain = _checked(regrets, gains)
    single = _ratio(regret, gain)
    # Ties in the ratio are broken by regret, then by gain.
    best = int(np.lexsort((-gain, regret, single))[0])
    probabilities = np.zeros(len(regret))
    probabilities[best] = 1.0
    ratio = float(single[best])
    first, second = np.triu_indices(len(regret), k=1)
    if len(first):
        share = _best_share(regret[first], regret[second], gain[first], gain[second])
        mixed = _ratio(_mean(share, regret, first, second), _mean(share, gain, first, second))
        pair = int(np.argmin(mixed))
        if mixed[pair] < ratio * (1 - _BETTER):
            probabilities[:] = 0.0
            probabilities[first[pair]], probabilities[second[pair]] = share[pair], 1 - share[pair]
            ratio = float(mixed[pair])
    return InformationDirected(probabilities, ratio)


def _best_share(regret_1: FloatArray, regret_2: FloatArray, gain_1: FloatArray, gain_2: FloatArray) -> FloatArray:
    # The stationary point of the ratio. If one action is better in both respects it is not a minimum, and if regrets or
    # gains are equal it does not exist. In these cases an endpoint is optimal, which the single actions cover.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = regret_2 / (regret_1 - regret_2) - 2 * gain_2 / (gain_1 - gain_2)
    return np.clip(np.nan_to_num(share, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def _mean(
    share: FloatArray, numbers: FloatArray, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> FloatArray:
    return share * numbers[first] + (1 - share) * numbers[second]


def _ratio(regret: FloatArray, gain: FloatArray) -> FloatArray:
    ratio = np.full(np.shape(regret), np.inf)
    with np.errstate(over="ignore"):  # A gain near 0 may give inf, which is correct.
        np.divide(regret**2, gain, out=ratio, where=gain > 0)
    return np.where(regret > 0, ratio, 0.0)


def _checked(regrets: npt.ArrayLike, gains: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    regret, gain = np.asarray(regrets, dtype=np.float64), np.asarray(gains, dtype=np.float64)
    if regret.ndim != 1 or regret.shape != gain.shape or not len(regret):
        raise DecisionError(
            f"expected a regret and a gain for each action, got shapes {regret.shape} and {gain.shape}: give both"
        )
    for name, numbers in (("regret", regret), ("information gain", gain)):
        if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
            raise DecisionError(
                f"expected every {name} to be finite and at least 0, got {numbers.tolist()}: correct the estimator"
            )
    return regret, gain
