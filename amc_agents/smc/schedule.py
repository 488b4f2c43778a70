"""When to resample: the criterion c(t, w) of the paper's Algorithm 1.

Particles run freely up to the schedule's next point, are weighed there, and are resampled if the schedule triggers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.smc.weights import BoolArray, ess
from amc_agents.types import FloatArray


@runtime_checkable
class Schedule(Protocol):
    """Steps at which particles are weighed, and the criterion for resampling there. Both methods are pure."""

    def next_point(self, step: int) -> int | None:
        """The next step after `step` at which the particles are weighed; None: none before the end."""
        ...

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """`[...]` True where the population is to be resampled.

        Args:
            step: the current step.
            log_weights: `[..., N]` updated log-weights.
            live: `[..., N]` the particles that a resampling would draw from; only their weights matter. None: all.
        """
        ...


@dataclass(frozen=True, init=False)
class AtSteps:
    """Resample at given steps, once each: `AtSteps(4, 12)`. The critic is not called at other steps before the end."""

    steps: tuple[int, ...]
    """Distinct steps, at least 1, in ascending order."""

    def __init__(self, *steps: int) -> None:
        if not steps:
            raise ConfigurationError("AtSteps needs a step, as in AtSteps(4); to resample nowhere use Never()")
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 1:
                raise ConfigurationError(f"AtSteps counts whole steps from 1, as in AtSteps(4, 12); got {quoted(step)}")
        if len(set(steps)) < len(steps):
            raise ConfigurationError(f"AtSteps needs distinct steps; got {', '.join(map(str, steps))}")
        object.__setattr__(self, "steps", tuple(sorted(int(step) for step in steps)))

    def __repr__(self) -> str:
        """The constructor call."""
        return f"AtSteps({', '.join(map(str, self.steps))})"

    def next_point(self, step: int) -> int | None:
        """The smallest of the steps after `step`."""
        return next((point for point in self.steps if point > step), None)

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True at each of the steps."""
        return np.full(log_weights.shape[:-1], step in self.steps)


@dataclass(frozen=True)
class EssBelow:
    """Resample when the effective sample size falls below a share of the live particles (paper, appendix D.1.2).

    Weighs the particles, and so calls the critic, at every step.
    """

    threshold: float
    """rho, in (0, 1]: resample when ess < rho x number of live particles."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0.0 < self.threshold <= 1.0:
            raise ConfigurationError(
                f"EssBelow takes a share in (0, 1], as in EssBelow(0.5); got {quoted(self.threshold)}"
            )

    def next_point(self, step: int) -> int | None:
        """The next step."""
        return step + 1

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True where the effective sample size is below the threshold. Failed particles (weight 0) count as live."""
        is_live = np.ones(log_weights.shape, dtype=bool) if live is None else live
        live_log_weights = np.where(is_live, log_weights, -np.inf)
        has_weight = np.any(live_log_weights > -np.inf, axis=-1)
        size = np.where(has_weight, ess(np.where(has_weight[..., np.newaxis], live_log_weights, 0.0)), 0.0)
        uneven: BoolArray = size < self.threshold * np.sum(is_live, axis=-1)
        return uneven


@dataclass(frozen=True)
class EveryStep:
    """Resample at every step (the plain bootstrap filter)."""

    def next_point(self, step: int) -> int | None:
        """The next step."""
        return step + 1

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True."""
        return np.ones(log_weights.shape[:-1], dtype=bool)


@dataclass(frozen=True)
class Never:
    """Never resample: independent particles, weighed at the end (Best-of-N)."""

    def next_point(self, step: int) -> int | None:
        """None: the particles are weighed only at the end."""
        return None

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """False."""
        return np.zeros(log_weights.shape[:-1], dtype=bool)
