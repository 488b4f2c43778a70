"""Confidence sequences of means and lifts, and the ranking of answers by a critic with its interval.

A confidence sequence holds at all sample sizes at once, so that a report may be read at any time. Both are
empirical-Bernstein sequences for bounded observations: Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49 (2021), Theorem 4, and for the lift its
section on average treatment effects; the mixture over lambda is finite. They cover the running mean of the conditional
means, so the truth may drift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.types import FloatArray

BoolArray = npt.NDArray[np.bool_]

_LAMBDAS = 0.8 * 1.5 ** -np.arange(12.0)
_PSI = -np.log1p(-_LAMBDAS) - _LAMBDAS
_LOG_PRIOR = -math.log(len(_LAMBDAS))
_NEWTON_STEPS = 12


class Sequence(NamedTuple):
    """A confidence sequence: an estimate and its interval after each of n observations."""

    estimate: FloatArray
    """`[n]` running mean."""
    low: FloatArray
    """`[n]` lower end."""
    high: FloatArray
    """`[n]` upper end."""
    variance: float
    """Variance process after the last observation, divided by n and by the squared scale: sizes a larger sample."""
    scale: float
    """Bound of the distance between an observation and its prediction."""


def mean_sequence(outcomes: FloatArray, alpha: float = 0.05) -> Sequence:
    """Return the sequence for the mean of `[n]` outcomes in [0, 1]."""
    predicted = _running_mean_before(outcomes, np.ones_like(outcomes))
    return _sequence(outcomes, predicted, 1.0, alpha)


def lift_sequence(treated: BoolArray, outcomes: FloatArray, shares: FloatArray, alpha: float = 0.05) -> Sequence:
    """Return the sequence for the mean difference in outcome, treated minus plain, over randomised units.

    Each unit contributes an inverse-probability-weighted difference, centred on the arms' means before it.

    Args:
        treated: `[n]` arm of each unit, in the order in which they are counted.
        outcomes: `[n]` its outcome, in [0, 1].
        shares: `[n]` probability with which it was treated, strictly between 0 and 1.
        alpha: probability that the interval misses the truth at any size.
    """
    treatment, plain = treated.astype(np.float64), (~treated).astype(np.float64)
    mean_treated = _running_mean_before(outcomes, treatment)
    mean_plain = _running_mean_before(outcomes, plain)
    predicted = mean_treated - mean_plain
    differences = (
        predicted + treatment * (outcomes - mean_treated) / shares - plain * (outcomes - mean_plain) / (1.0 - shares)
    )
    scale = float(np.max(np.maximum(1.0 / shares, 1.0 / (1.0 - shares)), initial=1.0))
    return _sequence(differences, predicted, scale, alpha)


def half_width(variance: FloatArray, n: FloatArray, scale: float, alpha: float = 0.05) -> FloatArray:
    """`[n]` half of the width of a sequence.

    Args:
        variance: `[n]` sum of the squared prediction errors, divided by the squared scale.
        n: `[n]` numbers of observations.
        scale: bound of a prediction error.
        alpha: error of both sides together.
    """
    return scale * _boundary(variance, alpha / 2) / n


def n_needed(sequence: Sequence, distance: float, alpha: float = 0.05) -> int | None:
    """Return the sample size at which the half-width falls below `distance`, if the variance stays; None: never."""
    sizes: FloatArray = np.exp2(np.arange(4.0, 31.0))
    enough = half_width(sequence.variance * sizes, sizes, sequence.scale, alpha) < abs(distance)
    if not enough.any():
        return None
    last = sizes[int(np.argmax(enough))]
    fine: FloatArray = np.linspace(last / 2, last, 65)
    enough = half_width(sequence.variance * fine, fine, sequence.scale, alpha) < abs(distance)
    return math.ceil(float(fine[int(np.argmax(enough))]))


def _sequence(values: FloatArray, predicted: FloatArray, scale: float, alpha: float) -> Sequence:
    n: FloatArray = np.arange(1.0, len(values) + 1.0)
    estimate = np.cumsum(values) / n
    variance = np.cumsum(((values - predicted) / scale) ** 2).astype(np.float64)
    width = half_width(variance, n, scale, alpha)
    last = float(variance[-1] / n[-1]) if len(n) else math.nan
    return Sequence(estimate, estimate - width, estimate + width, last, scale)


def _running_mean_before(values: FloatArray, counted: FloatArray) -> FloatArray:
    """`[n]` mean of the counted values before each place, with a prior observation of 1/2."""
    total = np.concatenate([[0.0], np.cumsum(values * counted)[:-1]]) if len(values) else values
    count = np.concatenate([[0.0], np.cumsum(counted)[:-1]]) if len(values) else values
    mean: FloatArray = (total + 0.5) / (count + 1.0)
    return mean


def _boundary(variance: FloatArray, alpha: float) -> FloatArray:
    """`[n]` the sum that the mixture of exp(lambda s - psi(lambda) v) exceeds with probability at most alpha.

    By Newton's method from above: the log of the mixture is convex and increasing in s.
    """
    level = -math.log(alpha)
    costs = _PSI * np.asarray(variance)[:, None] - _LOG_PRIOR
    s: FloatArray = np.min((level + costs) / _LAMBDAS, axis=1)
    for _ in range(_NEWTON_STEPS):
        exponents = s[:, None] * _LAMBDAS - costs
        largest = exponents.max(axis=1)
        terms = np.exp(exponents - largest[:, None])
        total = terms.sum(axis=1)
        slope = (terms @ _LAMBDAS) / total
        s = s - (largest + np.log(total) - level) / slope
    return s


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


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of values; NaN if there are none."""
    listed = [*values]
    return math.fsum(listed) / len(listed) if listed else math.nan
