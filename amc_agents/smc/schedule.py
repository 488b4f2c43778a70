"""When to resample: the criterion c(t, w) of the paper's Algorithm 1, in two questions.

Particles run freely up to a schedule's next point, meet there to be weighed, and are resampled if it triggers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.smc.weights import BoolArray, ess
from amc_agents.types import FloatArray


@runtime_checkable
class Schedule(Protocol):
    """Where particles meet, and whether they are resampled there. Both answers are pure."""

    def next_point(self, step: int) -> int | None:
        """The next step after `step` at which the particles meet to be weighed; None: run freely to the end."""
        ...

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """`[...]` whether to resample now.

        Args:
            step: the point that was reached.
            log_weights: `[..., N]` log-weights, just updated.
            live: `[..., N]` the particles that a resampling would draw from; the trigger looks at these alone,
                for it can improve no others. None: all.
        """
        ...


@dataclass(frozen=True, init=False)
class AtSteps:
    """At these steps, once each, whatever the weights: `AtSteps(4, 12)`. The critic is not asked elsewhere."""

    steps: tuple[int, ...]
    """Distinct steps, at least 1, in ascending order."""

    def __init__(self, *steps: int) -> None:
        if not steps:
            raise ConfigurationError("AtSteps needs a step, as in AtSteps(4); to resample nowhere use Never()")
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 1:
                raise ConfigurationError(f"AtSteps counts whole steps from 1, as in AtSteps(4, 12); got {step!r}")
        if len(set(steps)) < len(steps):
            raise ConfigurationError(f"AtSteps needs distinct steps; got {', '.join(map(str, steps))}")
        object.__setattr__(self, "steps", tuple(sorted(int(step) for step in steps)))

    def __repr__(self) -> str:
        """As it is written in code."""
        return f"AtSteps({', '.join(map(str, self.steps))})"

    def next_point(self, step: int) -> int | None:
        """The smallest of the steps that is still to come."""
        return next((point for point in self.steps if point > step), None)

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True at one of the steps."""
        return np.full(log_weights.shape[:-1], step in self.steps)


@dataclass(frozen=True)
class EssBelow:
    """Where the effective sample size falls below a share of the live particles (paper, appendix D.1.2).

    Weighs, and so asks the critic, at every step.
    """

    threshold: float
    """rho, in (0, 1]: resample when ess < rho x number of live particles."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0.0 < self.threshold <= 1.0:
            raise ConfigurationError(f"EssBelow takes a share in (0, 1], as in EssBelow(0.5); got {self.threshold!r}")

    def next_point(self, step: int) -> int | None:
        """The next step."""
        return step + 1

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True where the live particles' weights have become uneven. Failed ones (weight 0) count as live."""
        is_live = np.ones(log_weights.shape, dtype=bool) if live is None else live
        live_log_weights = np.where(is_live, log_weights, -np.inf)
        has_weight = np.any(live_log_weights > -np.inf, axis=-1)
        size = np.where(has_weight, ess(np.where(has_weight[..., np.newaxis], live_log_weights, 0.0)), 0.0)
        uneven: BoolArray = size < self.threshold * np.sum(is_live, axis=-1)
        return uneven


@dataclass(frozen=True)
class EveryStep:
    """At every step, whatever the weights (the plain bootstrap filter)."""

    def next_point(self, step: int) -> int | None:
        """The next step."""
        return step + 1

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """True."""
        return np.ones(log_weights.shape[:-1], dtype=bool)


@dataclass(frozen=True)
class Never:
    """Nowhere: independent particles, weighed at the end (Best-of-N)."""

    def next_point(self, step: int) -> int | None:
        """None: there is no point before the end."""
        return None

    def triggered(self, step: int, log_weights: FloatArray, live: BoolArray | None = None) -> BoolArray:
        """False."""
        return np.zeros(log_weights.shape[:-1], dtype=bool)
