"""Information-directed sampling: the distribution over actions with the least information ratio (LLM-PSRL, 6.2.2).

The ratio is (expected regret)^2 / expected information gain. It is convex in the distribution, and its minimum needs
two actions at most; for a pair it has a closed form, so that no grid is searched. `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.errors import DecisionError
from amc_agents.types import FloatArray

_BETTER = 1e-12
"""A mixture has to beat the best single action by this share, or the single action is taken."""


class InformationDirected(NamedTuple):
    """What to do, and at what price."""

    probabilities: FloatArray
    """`[A]` of the actions; at most two are above 0."""
    ratio: float
    """Regret units squared per unit of information; inf where there is something to lose and nothing to learn."""


def least_information_ratio(regrets: npt.ArrayLike, gains: npt.ArrayLike) -> InformationDirected:
    """The distribution that minimises (E regret)^2 / E gain, exactly.

    The degenerate cases: an action without regret has ratio 0 whatever it teaches, and of several the most instructive
    one is taken. Where no action teaches anything, the one with the least regret is taken. What is still equal
    goes to the first.

    Args:
        regrets: `[A]` expected regret of each action, at least 0.
        gains: `[A]` expected information about optimal behaviour, at least 0, in any one unit.

    Raises:
        DecisionError: shapes that do not match, no action, or a number that is negative or not finite.

    >>> least_information_ratio([0.2, 0.6], [0.1, 1.0]).probabilities.round(3).tolist()
    [0.722, 0.278]
    """
    regret, gain = _checked(regrets, gains)
    single = _ratio(regret, gain)
    # Of equal ratios the better teacher (0 regret) or the cheaper (no gain): which one the others decide by.
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
    # The stationary point of the ratio. Where one action is better in both ways it is no minimum, and where regrets or
    # gains are equal there is none: there an end is the best, which the single actions cover.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = regret_2 / (regret_1 - regret_2) - 2 * gain_2 / (gain_1 - gain_2)
    return np.clip(np.nan_to_num(share, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def _mean(
    share: FloatArray, numbers: FloatArray, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> FloatArray:
    return share * numbers[first] + (1 - share) * numbers[second]


def _ratio(regret: FloatArray, gain: FloatArray) -> FloatArray:
    ratio = np.full(np.shape(regret), np.inf)
    with np.errstate(over="ignore"):  # a gain near 0 may give inf, which is what it means
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
                f"expected every {name} to be finite and at least 0, got {numbers.tolist()}: an estimator that gives "
                "other numbers has to be corrected before the decision"
            )
    return regret, gain
