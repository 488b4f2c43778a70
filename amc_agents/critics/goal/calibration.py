"""Q -> probability: a monotone map fitted to what really happened after (state, thought, goal) triples."""

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
