"""How a critic ranks answers by their outcomes: AUC with an interval clustered by key."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amc_agents.types import FloatArray

Z = 1.96
SMALLEST = 10
"""Minimum number of keys on each side of a ranking."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The probability that the better of two answers has the larger value; 1/2 is a critic that knows nothing."""

    auc: float
    low: float
    """Lower end of the 95% interval of a single look."""
    high: float
    """Upper end."""
    n: int
    """Number of answers."""
    n_high: int
    """Number of answers whose outcome is above the middle."""

    def __str__(self) -> str:
        return f"{self.auc:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def n_more(self) -> int | None:
        """Estimated number of further outcomes until the interval excludes 1/2; None: no estimate."""
        distance = abs(self.auc - 0.5)
        if distance == 0.0:
            return None
        half = (self.high - self.low) / 2
        return max(0, math.ceil(self.n * (half / distance) ** 2) - self.n)


def rank(values: FloatArray, outcomes: FloatArray, groups: npt.NDArray[np.int64]) -> Ranking | None:
    """Rank answers by value against outcome; None: too few keys with high or with low outcomes.

    Outcomes of more than two levels are split at their middle, (min + max) / 2. The interval is DeLong's ("Comparing
    the areas under two or more correlated receiver operating characteristic curves", 1988), with placements summed by
    key (Obuchowski, "Nonparametric analysis of clustered ROC curve data", 1997).

    Args:
        values: `[n]` critic's values.
        outcomes: `[n]` outcomes.
        groups: `[n]` number of each answer's key.
    """
    good = outcomes > (outcomes.min() + outcomes.max()) / 2
    if min(len(np.unique(groups[good])), len(np.unique(groups[~good]))) < SMALLEST:
        return None
    # Placement of each answer: the share of the other side that it is ordered correctly against.
    above = _share_below(values[good], values[~good])
    below = 1.0 - _share_below(values[~good], values[good])
    auc = float(above.mean())
    influence = np.zeros(len(values))
    influence[good] = (above - auc) / len(above)
    influence[~good] = (below - auc) / len(below)
    sums = np.bincount(groups, influence)
    n_groups = len(np.unique(groups))
    error = math.sqrt(n_groups / (n_groups - 1) * float(np.sum(sums**2)))
    # A perfect separation has no spread; the rule of three bounds what may be hidden.
    half = max(Z * error, 3.0 / n_groups if auc in (0.0, 1.0) else 0.0)
    return Ranking(auc, max(0.0, auc - half), min(1.0, auc + half), len(values), int(good.sum()))


def _share_below(values: FloatArray, others: FloatArray) -> FloatArray:
    """`[n]` share of `others` below each value, ties as half."""
    ordered = np.sort(others)
    both = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    shares: FloatArray = both / (2.0 * len(others))
    return shares
