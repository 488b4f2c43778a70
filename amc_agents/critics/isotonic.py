"""Isotonic regression by pooling adjacent violators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.errors import CheckpointError
from amc_agents.types import FloatArray


class Pool(NamedTuple):
    """Neighbouring points with the same fitted height."""

    low: float
    """Smallest x."""
    high: float
    """Largest x."""
    centre: float
    """Mean x."""
    height: float
    """Mean y."""


def rising_pools(x: FloatArray, y: FloatArray, weights: FloatArray | None = None) -> list[Pool]:
    """Fit the non-decreasing step function with the smallest squared error.

    Args:
        x: `[n]`, n > 0; in any order, with ties.
        y: `[n]`.
        weights: `[n]` positive weights of the points, in errors and means; None: equal weights.

    Returns:
        Pools, by rising x and rising height.

    >>> rising_pools(np.array([1.0, 2.0, 3.0]), np.array([0.0, 3.0, 1.0]))
    [Pool(low=1.0, high=1.0, centre=1.0, height=0.0), Pool(low=2.0, high=3.0, centre=2.5, height=2.0)]
    """
    where, inverse = np.unique(x, return_inverse=True)
    weights = np.ones(len(x)) if weights is None else weights
    mass = np.bincount(inverse, weights)
    # For each pool: its ends, the weighted sums of its x and y, and its weight.
    pools: list[tuple[float, float, float, float, float]] = []
    for point in zip(where, where, mass * where, np.bincount(inverse, weights * y), mass, strict=True):
        pools.append(point)
        # Merge neighbours whose heights do not rise.
        while len(pools) > 1 and pools[-2][3] / pools[-2][4] >= pools[-1][3] / pools[-1][4]:
            (_, high, *right), (low, _, *left) = pools.pop(), pools.pop()
            sum_x, sum_y, n = (a + b for a, b in zip(left, right, strict=True))
            pools.append((low, high, sum_x, sum_y, n))
    return [Pool(float(low), float(high), float(sum_x / n), float(sum_y / n)) for low, high, sum_x, sum_y, n in pools]


def check_rising(x: Sequence[float], y: Sequence[float], names: tuple[str, str]) -> None:
    """Check the corners of a rising curve.

    Args:
        x: `[n]`.
        y: `[n]`.
        names: plural nouns for x and y, for the message.

    Raises:
        CheckpointError: no corners, different lengths, a number that is not finite, or a curve that falls.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs):
        raise CheckpointError(
            f"a calibration has {len(x)} {names[0]}, {len(y)} {names[1]}: expected as many, at least 1"
        )
    if not (np.all(np.isfinite(xs)) and np.all(np.isfinite(ys))):
        raise CheckpointError(f"a calibration's {names[0]} and {names[1]} must be finite")
    if not (np.all(np.diff(xs) > 0) and np.all(np.diff(ys) >= 0)):
        raise CheckpointError(f"a calibration's {names[0]} and {names[1]} must rise")
