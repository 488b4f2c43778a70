"""Isotonic regression: the rising steps nearest to some points (pool adjacent violators)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.errors import CheckpointError
from amc_agents.types import FloatArray


class Pool(NamedTuple):
    """Neighbouring points that are given the same height."""

    low: float
    """Their least x."""
    high: float
    """Their largest x."""
    centre: float
    """Their mean x."""
    height: float
    """Their mean y."""


def rising_pools(x: FloatArray, y: FloatArray, weights: FloatArray | None = None) -> list[Pool]:
    """The rising function that is nearest to some points by squared error, as its level stretches.

    Args:
        x: `[n]`, n > 0; in any order, with ties.
        y: `[n]`.
        weights: `[n]` positive weights of the points, in errors and means; None: all alike.

    Returns:
        Pools of rising x and rising height.

    >>> rising_pools(np.array([1.0, 2.0, 3.0]), np.array([0.0, 3.0, 1.0]))
    [Pool(low=1.0, high=1.0, centre=1.0, height=0.0), Pool(low=2.0, high=3.0, centre=2.5, height=2.0)]
    """
    where, inverse = np.unique(x, return_inverse=True)
    weights = np.ones(len(x)) if weights is None else weights
    mass = np.bincount(inverse, weights)
    # Of each pool: its ends, the weighted sums of its x and y, and its weight.
    pools: list[tuple[float, float, float, float, float]] = []
    for one in zip(where, where, mass * where, np.bincount(inverse, weights * y), mass, strict=True):
        pools.append(one)
        # Two neighbours that do not rise are one pool.
        while len(pools) > 1 and pools[-2][3] / pools[-2][4] >= pools[-1][3] / pools[-1][4]:
            (_, high, *right), (low, _, *left) = pools.pop(), pools.pop()
            sum_x, sum_y, n = (a + b for a, b in zip(left, right, strict=True))
            pools.append((low, high, sum_x, sum_y, n))
    return [Pool(float(low), float(high), float(sum_x / n), float(sum_y / n)) for low, high, sum_x, sum_y, n in pools]


def check_rising(x: Sequence[float], y: Sequence[float], names: tuple[str, str]) -> None:
    """Refuses corners that are not those of a rising curve.

    Args:
        x: `[n]`.
        y: `[n]`.
        names: what x and y are, for the message.

    Raises:
        CheckpointError: there is none, their numbers differ, one is not finite, or they do not rise.
    """
    one, other = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if one.ndim != 1 or one.shape != other.shape or not len(one):
        raise CheckpointError(f"a calibration has {len(x)} {names[0]}, {len(y)} {names[1]}: expected as many, and some")
    if not (np.all(np.isfinite(one)) and np.all(np.isfinite(other))):
        raise CheckpointError(f"a calibration's {names[0]} and {names[1]} must be finite")
    if not (np.all(np.diff(one) > 0) and np.all(np.diff(other) >= 0)):
        raise CheckpointError(f"a calibration's {names[0]} and {names[1]} must rise")
