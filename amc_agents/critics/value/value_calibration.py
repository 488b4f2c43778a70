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
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray

Kind = Literal["affine", "isotonic", "logistic"]
"""A straight line, any non-decreasing curve, or for two outcomes the logistic curve of Platt scaling."""


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


@dataclass(frozen=True)
class LogisticCalibration:
    """A non-decreasing logistic curve between two outcomes (Platt scaling): low + (high - low) sigmoid(slope v + c)."""

    slope: float
    intercept: float
    low: float
    """The worse outcome, in reward units."""
    high: float
    """The better outcome."""

    def __post_init__(self) -> None:
        """Refuse a curve that would reverse the critic's ranking."""
        numbers = (self.slope, self.intercept, self.low, self.high)
        if not (all(map(math.isfinite, numbers)) and self.slope >= 0 and self.low < self.high):
            raise CheckpointError(
                f"a logistic calibration has slope {self.slope}, intercept {self.intercept}, outcomes {self.low} and "
                f"{self.high}: expected finite numbers, a slope of at least 0, and ascending outcomes"
            )

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return `[n]` calibrated values of `[n]` values."""
        logits = self.slope * np.asarray(values, dtype=np.float64) + self.intercept
        calibrated: FloatArray = self.low + (self.high - self.low) * _sigmoid(logits)
        return calibrated

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {
            "kind": "logistic", "slope": self.slope, "intercept": self.intercept, "low": self.low, "high": self.high,
        }  # fmt: skip


ValueCalibration = AffineCalibration | IsotonicCalibration | LogisticCalibration


def calibration_from_json(plain: Mapping[str, Any]) -> ValueCalibration:
    """Restore from `to_json`. Raises `CheckpointError` for an unknown kind, or a map that falls."""
    try:
        restored = _restored(plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"a calibration has other numbers than expected: {excerpt(str(error))}") from error
    if restored is None:
        raise CheckpointError(f"expected an affine, isotonic or logistic calibration, got {quoted(plain, 200)}")
    return restored


def _restored(plain: Mapping[str, Any]) -> ValueCalibration | None:
    match plain:
        case {"kind": "affine", "slope": int() | float() as slope, "intercept": int() | float() as intercept}:
            return AffineCalibration(float(slope), float(intercept))
        case {"kind": "isotonic", "value": list(value), "calibrated": list(calibrated)}:
            return IsotonicCalibration(tuple(map(float, value)), tuple(map(float, calibrated)))
        case {
            "kind": "logistic", "slope": int() | float() as slope, "intercept": int() | float() as intercept,
            "low": int() | float() as low, "high": int() | float() as high,
        }:  # fmt: skip
            return LogisticCalibration(float(slope), float(intercept), float(low), float(high))
    return None


def fit_value_calibration(
    kind: Kind,
    values: FloatArray,
    targets: FloatArray,
    groups: npt.NDArray[Any],
    weights: FloatArray | None = None,
) -> ValueCalibration:
    """Fit a calibration by (weighted) least squares; a logistic one by maximum likelihood.

    Args:
        kind: "affine" and "logistic" have two parameters and suit few tasks; "isotonic" is more flexible and needs
            many tasks. "logistic" is for two different targets.
        values: `[n]` uncalibrated values of held-out states, in reward units.
        targets: `[n]` their training targets.
        groups: `[n]` the task of each state.
        weights: `[n]` positive weights of the training loss, which keep the values' meaning; None: equal weights.

    Raises:
        ConfigurationError: the kind is unknown or does not suit the targets, lengths differ, a number is not finite, a
            weight is not positive, or all states belong to the same task: the fit would describe that task rather than
            the critic.

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
    if kind == "logistic":
        return _curve(values, targets, weights)
    raise ConfigurationError(f"a calibration is 'affine', 'isotonic' or 'logistic', got {quoted(kind)}")


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


def _curve(values: FloatArray, targets: FloatArray, weights: FloatArray) -> LogisticCalibration:
    """Fit by Newton's method, with Platt's targets, which are less certain than 0 and 1 where states are few."""
    low, high = float(targets.min()), float(targets.max())
    good = targets == high
    if low == high or not np.all(good | (targets == low)):
        raise ConfigurationError(
            f"a logistic calibration needs targets of exactly two values, got {len(np.unique(targets))}: use 'affine' "
            "or 'isotonic'"
        )
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    scaled = np.stack([(values - centre) / spread, np.ones_like(values)], axis=1)
    n_good, n_bad = float(weights[good].sum()), float(weights[~good].sum())
    smoothed = np.where(good, (n_good + 1) / (n_good + 2), 1 / (n_bad + 2))
    fitted = np.array([0.0, math.log((n_good + 1) / (n_bad + 1))])
    for _ in range(_NEWTON_STEPS):
        chance = _sigmoid(scaled @ fitted)
        gradient = scaled.T @ (weights * (chance - smoothed)) + _RIDGE * fitted * (1, 0)
        hessian = (scaled * (weights * chance * (1 - chance))[:, None]).T @ scaled + np.diag([_RIDGE, _RIDGE])
        step = np.linalg.solve(hessian, gradient)
        fitted = fitted - step * min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
        if float(np.abs(step).max()) < _TOLERANCE:
            break
    if fitted[0] <= 0:
        # If values rise where outcomes fall, no rising curve is better than the share of good outcomes.
        return LogisticCalibration(0.0, math.log((n_good + 1) / (n_bad + 1)), low, high)
    slope = float(fitted[0] / spread)
    return LogisticCalibration(slope, float(fitted[1]) - slope * centre, low, high)


def _sigmoid(logits: FloatArray) -> FloatArray:
    # By tanh, because exp of a large number would overflow.
    chances: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return chances


_NEWTON_STEPS = 100
_LONGEST_STEP = 2.0
"""Bound of a Newton step, which could overshoot where the curve is flat."""
_RIDGE = 1e-6
_TOLERANCE = 1e-9
