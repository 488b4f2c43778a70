"""Calibration of a value model: a non-decreasing map, fitted to the outcomes of held-out states.

A value model that ranks states well may still be over- or underconfident. AMC exponentiates its values, so in the
weights exp(V / beta) a wrong slope acts like a wrong beta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from amc_agents.critics.isotonic import check_rising, rising_pools
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.types import FloatArray

Kind = Literal["affine", "isotonic"]
"""A straight line, or any non-decreasing curve."""


@dataclass(frozen=True)
class AffineCalibration:
    """A non-decreasing straight line."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        """Refuse a line that would reverse the critic's ranking."""
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept) and self.slope >= 0):
            raise CheckpointError(
                f"a calibration has slope {self.slope} and intercept {self.intercept}: expected finite numbers, and a "
                "slope of at least 0"
            )

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return `[n]` calibrated values of `[n]` values."""
        calibrated: FloatArray = self.slope * np.asarray(values, dtype=np.float64) + self.intercept
        return calibrated

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {"kind": "affine", "slope": self.slope, "intercept": self.intercept}


@dataclass(frozen=True)
class IsotonicCalibration:
    """A piecewise linear, non-decreasing curve, constant beyond its ends."""

    value: tuple[float, ...]
    """`[n]` values of the corners, increasing."""
    calibrated: tuple[float, ...]
    """`[n]` calibrated values of the corners, non-decreasing."""

    def __post_init__(self) -> None:
        """Refuse corners of a falling curve."""
        check_rising(self.value, self.calibrated, ("values", "calibrated values"))

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return `[n]` calibrated values of `[n]` values."""
        calibrated: FloatArray = np.interp(values, self.value, self.calibrated)
        return calibrated

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {"kind": "isotonic", "value": list(self.value), "calibrated": list(self.calibrated)}


ValueCalibration = AffineCalibration | IsotonicCalibration


def calibration_from_json(plain: Mapping[str, Any]) -> ValueCalibration:
    """Restore from `to_json`. Raises `CheckpointError` for an unknown kind, or a map that falls."""
    match plain:
        case {"kind": "affine", "slope": int() | float() as slope, "intercept": int() | float() as intercept}:
            return AffineCalibration(float(slope), float(intercept))
        case {"kind": "isotonic", "value": list(value), "calibrated": list(calibrated)}:
            return IsotonicCalibration(tuple(map(float, value)), tuple(map(float, calibrated)))
    raise CheckpointError(f"expected an affine or isotonic calibration, got {plain!r}")


def fit_value_calibration(
    kind: Kind,
    values: FloatArray,
    targets: FloatArray,
    groups: npt.NDArray[Any],
    weights: FloatArray | None = None,
) -> ValueCalibration:
    """Fit a calibration by (weighted) least squares.

    Args:
        kind: "affine" has two parameters and suits few tasks; "isotonic" is more flexible and needs many tasks.
        values: `[n]` uncalibrated values of held-out states, in reward units.
        targets: `[n]` their training targets.
        groups: `[n]` the task of each state.
        weights: `[n]` positive weights of the training loss, which keep the values' meaning; None: equal weights.

    Raises:
        ConfigurationError: the kind is unknown, lengths differ, a number is not finite, a weight is not positive, or
            all states belong to the same task: the fit would describe that task rather than the critic.

    >>> values, targets = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0, 2.5])
    >>> fit_value_calibration("affine", values, targets, np.array([0, 0, 1, 1]))
    AffineCalibration(slope=0.5, intercept=1.0)
    """
    values, targets = np.asarray(values, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    weights = np.ones(values.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not values.shape == targets.shape == np.shape(groups) == weights.shape:
        raise ConfigurationError(
            f"expected [n] values, targets, groups and weights, got {values.shape}, {targets.shape}, "
            f"{np.shape(groups)} and {weights.shape}"
        )
    if not all(np.isfinite(array).all() for array in (values, targets, weights)) or (weights <= 0).any():
        raise ConfigurationError("a calibration needs finite values and targets, and weights above 0")
    n_groups = len(np.unique(groups))
    if n_groups < 2:
        raise ConfigurationError(
            f"a calibration needs held-out states of at least 2 tasks, got {n_groups}: collect more tasks, hold out a "
            "larger share, or train without calibration"
        )
    if kind == "isotonic":
        return _steps(values, targets, weights)
    if kind == "affine":
        return _line(values, targets, weights)
    raise ConfigurationError(f"a calibration is 'affine' or 'isotonic', got {kind!r}")


def _steps(values: FloatArray, targets: FloatArray, weights: FloatArray) -> IsotonicCalibration:
    corners: dict[float, float] = {}
    for pool in rising_pools(values, targets, weights):
        # Constant within a pool, which is the best fit: outcomes do not distinguish the states in it.
        corners |= {pool.low: pool.height, pool.high: pool.height}
    return IsotonicCalibration(tuple(corners), tuple(corners.values()))


def _line(values: FloatArray, targets: FloatArray, weights: FloatArray) -> AffineCalibration:
    centre, height = (float(np.average(array, weights=weights)) for array in (values, targets))
    spread = float(np.average((values - centre) ** 2, weights=weights))
    covariance = float(np.average((values - centre) * (targets - height), weights=weights))
    # If values rise where outcomes fall, no non-decreasing line is better than the mean.
    slope = max(0.0, covariance / spread) if spread > 0 else 0.0
    return AffineCalibration(slope, height - slope * centre)
