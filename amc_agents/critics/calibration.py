"""Calibration: a non-decreasing map from a critic's values to outcomes, and the critic `calibrated:FOLDER`.

A value model that ranks states well may still be over- or underconfident. AMC exponentiates its values, so in the
weights exp(V / beta) a wrong slope acts like a wrong beta. A map is fitted to the outcomes of held-out states.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.adapting import checked_values, connect
from amc_agents.critics.saved import SavedFields, read_saved
from amc_agents.critics.spec import allow, needed
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import Critic, FloatArray, Trajectory
from amc_agents.usage import Usage

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


FILE = "amc_calibration.json"
"""Name of the file in the folder."""


def from_spec(target: str, options: Mapping[str, str]) -> CalibratedCritic:
    """The critic of `calibrated:FOLDER`."""
    allow("calibrated", options)
    return load_calibrated(needed("calibrated", target, "path/to/folder"))


class CalibratedCritic:
    """A critic whose values pass through a non-decreasing map, which keeps its ranking.

    Args:
        critic: any critic that values trajectories, in the form that `parse_critic` returns.
        calibration: the map, from the critic's values to reward units.
        name: the critic's name in messages.

    Raises:
        ConfigurationError: the critic has no values, or it is a model of eq. 5, whose values are no means.
    """

    def __init__(self, critic: Critic, calibration: ValueCalibration, *, name: str = "calibrated") -> None:
        if not isinstance(critic, Critic):
            raise ConfigurationError(f"{type(critic).__name__} does not value trajectories, so it cannot be calibrated")
        self.critic, self.calibration, self.name = critic, calibration, name

    @property
    def predicts(self) -> str:
        """The predicted quantity: "future", the return still to come, or "return", the whole return."""
        predicts: str = getattr(self.critic, "predicts", "future")
        return predicts

    @property
    def usage(self) -> Usage:
        """Total usage of the critic so far."""
        usage: Usage = getattr(self.critic, "usage", Usage())
        return usage

    async def connect(self) -> None:
        """Connect the critic. Errors are those of the critic."""
        await connect(self.critic)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` calibrated predictions in reward units. Errors are those of the critic."""
        trajectories = tuple(trajectories)
        values = await self.critic.values(trajectories)
        return self.calibration(checked_values(values, len(trajectories), self.name))


def save_calibrated(folder: str | Path, critic: str, calibration: ValueCalibration, report: Mapping[str, Any]) -> Path:
    """Write a calibration's file, atomically.

    Args:
        folder: an existing folder.
        critic: the critic's string; a path in it is relative to the working directory.
        calibration: the map.
        report: the report of the calibration, as plain values.

    Raises:
        StorageError: the file cannot be written.
    """
    content = {
        "kind": "amc-calibration", "version": _VERSION, "critic": critic, "calibration": calibration.to_json(),
        "report": dict(report),
    }  # fmt: skip
    path = Path(folder) / FILE
    replace_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def load_calibrated(folder: str | Path) -> CalibratedCritic:
    """Load a critic from a folder that `amc calibrate` wrote.

    Raises:
        CheckpointError: the file is missing or damaged.
        CriticSpecError: the critic's string cannot be parsed.
    """
    from amc_agents.critics.spec import parse_critic

    path = Path(folder) / FILE
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: expected a folder that `amc calibrate` wrote")
    saved = read_saved(path, _Saved, "a calibration", kind="amc-calibration", versions=(_VERSION,))
    try:
        calibration = calibration_from_json(saved["calibration"])
    except (CheckpointError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error
    return CalibratedCritic(parse_critic(saved["critic"]), calibration, name=f"calibrated:{folder}")


class _Saved(SavedFields):
    critic: str
    calibration: dict[str, Any]
    report: dict[str, Any]


_VERSION = 1
