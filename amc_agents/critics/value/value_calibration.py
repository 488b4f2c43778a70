"""Value -> calibrated value: a map that never falls, fitted to what really came of held-out states.

A value model that ranks states well may still be too sure or too cautious, and AMC exponentiates its values: the
weights exp(V / beta) feel a wrong slope as a wrong beta.
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
"""A straight line, or any rising curve."""


@dataclass(frozen=True)
class AffineCalibration:
    """A straight line that does not fall."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        """Refuse a line that would turn the critic's ranking around."""
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept) and self.slope >= 0):
            raise CheckpointError(
                f"a calibration has slope {self.slope} and intercept {self.intercept}: expected finite numbers, and a "
                "slope of at least 0"
            )

    def __call__(self, values: FloatArray) -> FloatArray:
        """`[n]` calibrated values of `[n]` values."""
        found: FloatArray = self.slope * np.asarray(values, dtype=np.float64) + self.intercept
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": "affine", "slope": self.slope, "intercept": self.intercept}


@dataclass(frozen=True)
class IsotonicCalibration:
    """Rising steps, with straight lines from one to the next; level beyond."""

    value: tuple[float, ...]
    """`[n]` values, rising."""
    calibrated: tuple[float, ...]
    """`[n]` what came of such states on average; never falls."""

    def __post_init__(self) -> None:
        """Refuse what is not a rising curve."""
        check_rising(self.value, self.calibrated, ("values", "calibrated values"))

    def __call__(self, values: FloatArray) -> FloatArray:
        """`[n]` calibrated values of `[n]` values."""
        found: FloatArray = np.interp(values, self.value, self.calibrated)
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": "isotonic", "value": list(self.value), "calibrated": list(self.calibrated)}


ValueCalibration = AffineCalibration | IsotonicCalibration


def calibration_from_json(plain: Mapping[str, Any]) -> ValueCalibration:
    """Back from `to_json`. Raises `CheckpointError` where the kind is not known or the map would fall."""
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
    """The best map of its kind by (weighted) squared error.

    Args:
        kind: "affine" has two numbers to fit and suits few tasks; "isotonic" also bends, and needs many.
        values: `[n]` what the critic says of held-out states, in reward units, uncalibrated.
        targets: `[n]` what it was to say of them.
        groups: `[n]` the task of each state.
        weights: `[n]` positive: those of the loss that the critic was trained by, so that its values keep their
            meaning; None: all alike.

    Raises:
        ConfigurationError: the kind is not known, lengths differ, a number is not finite, a weight is not positive, or
            the states are of one task: a map fitted to it would say more of that task than of the critic.

    >>> said, came = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0, 2.5])
    >>> fit_value_calibration("affine", said, came, np.array([0, 0, 1, 1]))
    AffineCalibration(slope=0.5, intercept=1.0)
    """
    said, came = np.asarray(values, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    weight = np.ones(said.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if said.ndim != 1 or not said.shape == came.shape == np.shape(groups) == weight.shape:
        raise ConfigurationError(
            f"expected [n] values, targets, groups and weights, got {said.shape}, {came.shape}, {np.shape(groups)} and "
            f"{weight.shape}"
        )
    if not all(np.isfinite(one).all() for one in (said, came, weight)) or (weight <= 0).any():
        raise ConfigurationError("a calibration needs finite values and targets, and weights above 0")
    n_groups = len(np.unique(groups))
    if n_groups < 2:
        raise ConfigurationError(
            f"a calibration needs held-out states of at least 2 tasks, got {n_groups}: collect more tasks, hold out a "
            "larger share, or train without calibration"
        )
    if kind == "isotonic":
        return _steps(said, came, weight)
    if kind == "affine":
        return _line(said, came, weight)
    raise ConfigurationError(f"a calibration is 'affine' or 'isotonic', got {kind!r}")


def _steps(values: FloatArray, targets: FloatArray, weights: FloatArray) -> IsotonicCalibration:
    corners: dict[float, float] = {}
    for pool in rising_pools(values, targets, weights):
        # Level within a pool: that is the best fit, and states in it were not told apart by what came of them.
        corners |= {pool.low: pool.height, pool.high: pool.height}
    return IsotonicCalibration(tuple(corners), tuple(corners.values()))


def _line(values: FloatArray, targets: FloatArray, weights: FloatArray) -> AffineCalibration:
    centre, height = (float(np.average(one, weights=weights)) for one in (values, targets))
    spread = float(np.average((values - centre) ** 2, weights=weights))
    together = float(np.average((values - centre) * (targets - height), weights=weights))
    # A critic whose values rise where outcomes fall knows nothing that can be used: the mean is the best that is left.
    slope = max(0.0, together / spread) if spread > 0 else 0.0
    return AffineCalibration(slope, height - slope * centre)
