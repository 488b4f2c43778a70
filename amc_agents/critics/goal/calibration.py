"""Q -> probability: a monotone map fitted to what really happened after (state, thought, goal) triples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.isotonic import check_rising, rising_pools
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.types import FloatArray


@dataclass(frozen=True)
class Calibration:
    """A rising curve through a few points, straight between them and level beyond."""

    q: tuple[float, ...]
    """`[n]` values of Q, rising."""
    probability: tuple[float, ...]
    """`[n]` how often the goal was reached there; never falls."""

    def __post_init__(self) -> None:
        """Refuse what is not a rising curve within [0, 1]."""
        check_rising(self.q, self.probability, ("values of Q", "probabilities"))
        if self.probability[0] < 0 or self.probability[-1] > 1:
            raise CheckpointError(f"a calibration's probabilities are {self.probability[0]} to {self.probability[-1]}")

    def __call__(self, q: FloatArray) -> FloatArray:
        """`[n]` probabilities of `[n]` values of Q."""
        found: FloatArray = np.interp(q, self.q, self.probability)
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"q": list(self.q), "probability": list(self.probability)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Back from `to_json`."""
        return cls(tuple(values["q"]), tuple(values["probability"]))


def fit_calibration(q: Sequence[float] | FloatArray, reached: Sequence[bool] | npt.NDArray[Any]) -> Calibration:
    """The best rising curve by squared error (isotonic regression, pool adjacent violators).

    The triples must be held out, and their goals drawn without a look at the trajectory's own future: goals picked in
    hindsight are all reached, and a critic calibrated on them believes in everything.

    Args:
        q: `[n]` what the critic says of each triple, uncalibrated.
        reached: `[n]` whether that trajectory later reached the goal.

    Raises:
        ConfigurationError: lengths differ, a number is not finite, or all triples have the same label.

    >>> fit_calibration([0.1, 0.2, 0.3, 0.4], [False, True, False, True])
    Calibration(q=(0.1, 0.25, 0.4), probability=(0.0, 0.5, 1.0))
    """
    values, labels = np.asarray(q, dtype=np.float64), np.asarray(reached, dtype=np.float64)
    if values.ndim != 1 or values.shape != labels.shape:
        raise ConfigurationError(f"expected [n] values of Q and [n] labels, got {values.shape} and {labels.shape}")
    if not np.all(np.isfinite(values)) or not np.all((labels == 0) | (labels == 1)):
        raise ConfigurationError("expected finite values of Q, and labels that say reached or not")
    if not 0 < labels.sum() < len(labels):
        raise ConfigurationError(
            f"{int(labels.sum())} of {len(labels)} goals were reached: both outcomes are needed. Take goals from the "
            "proposer, or at random; goals picked from a trajectory's own future are reached by construction"
        )
    pools = rising_pools(values, labels)
    return Calibration(tuple(one.centre for one in pools), tuple(one.height for one in pools))


class Bin(NamedTuple):
    """Triples with about the same predicted probability, and what became of them."""

    predicted: float
    """Mean of the predictions."""
    observed: float
    """Share of the goals that were reached."""
    standard_error: float
    """Of `observed`, over groups (tasks): triples of one task are no independent evidence. NaN with a single group."""
    n: int
    """Triples."""


def reliability(
    probability: FloatArray,
    reached: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    n_bins: int = 10,
    weights: FloatArray | None = None,
) -> list[Bin]:
    """Bins of about equal size, by rising prediction; equal predictions are never torn apart.

    Args:
        probability: `[n]` predictions.
        reached: `[n]` whether the goal was reached.
        groups: `[n]` what each triple belongs to, such as its task.
        n_bins: at most so many.
        weights: `[n]` weights of the predictions in a bin's means; None: all alike.

    >>> bins = reliability(np.array([0.2, 0.2, 0.8, 0.8]), np.array([0, 0, 1, 0]), np.arange(4))
    >>> [(one.predicted, one.observed, one.n) for one in bins]
    [(0.2, 0.0, 2), (0.8, 0.5, 2)]
    """
    number = bin_numbers(probability, n_bins)
    found = []
    for one in np.unique(number):
        rows = number == one
        weight = None if weights is None else weights[rows]
        share, error = clustered_mean(np.asarray(reached, dtype=np.float64)[rows], groups[rows], weight)
        found.append(Bin(float(np.average(probability[rows], weights=weight)), share, error, int(rows.sum())))
    return found


def bin_numbers(values: FloatArray, n_bins: int = 10) -> npt.NDArray[Any]:
    """`[n]` the number of each value's bin: about equal sizes, by rising value, equal values together.

    >>> bin_numbers(np.array([3.0, 1.0, 1.0, 2.0]), 2).tolist()
    [1, 0, 0, 1]
    """
    # A bin ends where the rank of a value, ties at their lowest rank, crosses a multiple of n / n_bins.
    found: npt.NDArray[Any] = np.searchsorted(np.sort(values), values) * n_bins // max(len(values), 1)
    return found


def calibration_error(bins: Sequence[Bin]) -> float:
    """Mean distance of prediction and outcome over the bins, by their size (the expected calibration error)."""
    return float(np.average([abs(one.predicted - one.observed) for one in bins], weights=[one.n for one in bins]))


def clustered_mean(
    values: FloatArray, groups: npt.NDArray[Any], weights: FloatArray | None = None
) -> tuple[float, float]:
    """(Weighted) mean of `[n]` values, and its standard error where values of one group may depend on each other."""
    weights = np.ones(len(values)) if weights is None else weights
    mean = float(np.average(values, weights=weights))
    _, inverse = np.unique(groups, return_inverse=True)
    sums = np.bincount(inverse, weights * (values - mean))
    n_groups = len(sums)
    if n_groups < 2:
        return mean, float("nan")
    return mean, float(np.sqrt(n_groups / (n_groups - 1) * np.sum(sums**2)) / weights.sum())
