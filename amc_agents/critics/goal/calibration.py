"""Calibrate Q to probabilities by a monotone map, fitted to the outcomes of (state, thought, goal) triples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amc_agents.critics.isotonic import check_rising, rising_pools
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.types import FloatArray


@dataclass(frozen=True)
class Calibration:
    """A monotone piecewise linear curve, constant beyond its first and last point."""

    q: tuple[float, ...]
    """`[n]` values of Q, ascending."""
    probability: tuple[float, ...]
    """`[n]` frequency with which the goal was reached, non-decreasing."""

    def __post_init__(self) -> None:
        """Check that the curve is monotone and within [0, 1]. Raises `CheckpointError`."""
        check_rising(self.q, self.probability, ("values of Q", "probabilities"))
        if self.probability[0] < 0 or self.probability[-1] > 1:
            raise CheckpointError(
                f"a calibration's probabilities must be within [0, 1], got {self.probability[0]} to "
                f"{self.probability[-1]}: train the critic again"
            )

    def __call__(self, q: FloatArray) -> FloatArray:
        """Return `[n]` probabilities of `[n]` values of Q."""
        probability: FloatArray = np.interp(q, self.q, self.probability)
        return probability

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON values."""
        return {"q": list(self.q), "probability": list(self.probability)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Read the result of `to_json`."""
        return cls(tuple(values["q"]), tuple(values["probability"]))


def fit_calibration(q: Sequence[float] | FloatArray, reached: Sequence[bool] | npt.NDArray[Any]) -> Calibration:
    """Fit a calibration by isotonic regression (pool adjacent violators).

    The triples must be held out, and their goals must be chosen independently of the trajectory's future: goals chosen
    in hindsight are all reached, and a critic calibrated on them predicts success for every goal.

    Args:
        q: `[n]` the critic's uncalibrated Q of each triple.
        reached: `[n]` whether the trajectory later reached the goal.

    Raises:
        ConfigurationError: lengths differ, a number is not finite, or all triples have the same label.

    >>> fit_calibration([0.1, 0.2, 0.3, 0.4], [False, True, False, True])
    Calibration(q=(0.1, 0.25, 0.4), probability=(0.0, 0.5, 1.0))
    """
    values, labels = np.asarray(q, dtype=np.float64), np.asarray(reached, dtype=np.float64)
    if values.ndim != 1 or values.shape != labels.shape:
        raise ConfigurationError(f"expected [n] values of Q and [n] labels, got {values.shape} and {labels.shape}")
    if not np.all(np.isfinite(values)) or not np.all((labels == 0) | (labels == 1)):
        raise ConfigurationError("expected finite values of Q and boolean labels (reached or not)")
    if not 0 < labels.sum() < len(labels):
        raise ConfigurationError(
            f"{int(labels.sum())} of {len(labels)} goals were reached: both outcomes are needed. Take goals from the "
            "proposer, or at random; goals chosen from a trajectory's own future are reached by construction"
        )
    pools = rising_pools(values, labels)
    return Calibration(tuple(pool.centre for pool in pools), tuple(pool.height for pool in pools))
