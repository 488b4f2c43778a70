"""When to resample (the criterion c(t, w) of the paper's Algorithm 1), and how: from log-weights to ancestors.

Particles run freely up to the schedule's next point, are weighed there, and are resampled if the schedule triggers.

Each of the four schemes is unbiased: the expected number of offspring of particle i is n_offspring x p_i. They differ
in the variance of that number: multinomial (the paper's) has the most, then residual and stratified, then systematic. A
particle of weight 0 is never an ancestor, whatever the random numbers and the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.smc.weights import BoolArray, ess, normalised
from amc_agents.types import FloatArray, IntArray


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


Scheme = Callable[[np.random.Generator, FloatArray, int], IntArray]
"""`(rng, log_weights [..., N], n_offspring) -> ancestors [..., n_offspring]`."""

BELOW_ONE = np.nextafter(1.0, 0.0)
ROUNDING = 1e-9
"""Tolerance for rounding up to an integer number of offspring: 9 equal weights give 8.999999999999998 each."""


def multinomial(rng: np.random.Generator, log_weights: FloatArray, n_offspring: int) -> IntArray:
    """Independent draws (the paper's Algorithm 1, line 9).

    Args:
        rng: source of the draws.
        log_weights: `[..., N]` unnormalised log-weights.
        n_offspring: number of ancestors to draw.

    Returns:
        `[..., n_offspring]` indices into the last axis of `log_weights`.
    """
    positions = rng.random((*log_weights.shape[:-1], n_offspring))
    return _indices_at(positions, normalised(log_weights))


def stratified(rng: np.random.Generator, log_weights: FloatArray, n_offspring: int) -> IntArray:
    """One draw in each of n_offspring equal parts of the unit interval; arguments as for `multinomial`."""
    strata = np.arange(n_offspring) + rng.random((*log_weights.shape[:-1], n_offspring))
    return _indices_at(strata / n_offspring, normalised(log_weights))


def systematic(rng: np.random.Generator, log_weights: FloatArray, n_offspring: int) -> IntArray:
    """n_offspring equally spaced positions with one random offset; arguments as for `multinomial`.

    Particle i has floor(n p_i) or ceil(n p_i) offspring.
    """
    comb = np.arange(n_offspring) + rng.random((*log_weights.shape[:-1], 1))
    return _indices_at(comb / n_offspring, normalised(log_weights))


def residual(rng: np.random.Generator, log_weights: FloatArray, n_offspring: int) -> IntArray:
    """floor(n p_i) certain offspring, and independent draws from the remainder; arguments as for `multinomial`."""
    probabilities = normalised(log_weights)
    expected = n_offspring * probabilities
    certain = np.floor(expected + ROUNDING)
    left_over = np.maximum(expected - certain, 0.0)
    nothing_left = np.sum(left_over, axis=-1, keepdims=True) == 0.0
    drawn = _indices_at(
        rng.random((*log_weights.shape[:-1], n_offspring)),
        np.where(nothing_left, probabilities, left_over),  # not used in these rows, but must be a valid distribution
    )
    places = np.broadcast_to(np.arange(n_offspring, dtype=np.float64), drawn.shape)
    fixed = _count_at_most(np.cumsum(certain, axis=-1), places)
    is_fixed = fixed < log_weights.shape[-1]  # places beyond the certain offspring are drawn
    return np.where(is_fixed, fixed, drawn)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {"multinomial": multinomial, "residual": residual, "stratified": stratified, "systematic": systematic}
)
"""The schemes by name."""


def resolve_scheme(scheme: str | Scheme) -> Scheme:
    """Look up a scheme by name; return a function unchanged.

    Raises:
        ConfigurationError: for an unknown name.
    """
    if callable(scheme):
        return scheme
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"unknown resampling scheme {quoted(scheme)}; choose one of {', '.join(sorted(SCHEMES))}"
        )
    return SCHEMES[scheme]


def keep_in_place(ancestors: IntArray) -> IntArray:
    """Order offspring so that the first offspring of each survivor stays in its slot and needs no fork.

    Args:
        ancestors: `[..., N]` the slot that each slot continues.

    Returns:
        `[..., N]` a permutation of the ancestors.

    >>> keep_in_place(np.array([1, 1, 1, 3]))
    array([1, 1, 1, 3])
    >>> keep_in_place(np.array([0, 0, 1, 3]))
    array([0, 1, 0, 3])
    """
    survives = np.zeros(ancestors.shape, dtype=bool)
    np.put_along_axis(survives, ancestors, True, axis=-1)
    ordered = np.sort(ancestors, axis=-1)
    further = np.zeros(ancestors.shape, dtype=bool)
    further[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    placed = np.broadcast_to(np.arange(ancestors.shape[-1]), ancestors.shape).copy()
    placed[~survives] = ordered[further]  # each row has as many free slots as further offspring
    return placed


def _indices_at(positions: FloatArray, masses: FloatArray) -> IntArray:
    """Return the particle whose part of the unit interval contains each position.

    Particle i has the part [C_i-1, C_i), where C are the cumulative masses; the part is empty if its mass is 0.
    Dividing by the last C makes it exactly 1, and positions are kept below 1 ((n - 1 + u) / n can round up to 1), so
    that no position selects a dead last particle.
    """
    cumulative = np.cumsum(masses, axis=-1)
    return _count_at_most(cumulative / cumulative[..., -1:], np.minimum(positions, BELOW_ONE))


def _count_at_most(thresholds: FloatArray, positions: FloatArray) -> IntArray:
    """For each position `[..., M]`, the number of sorted thresholds `[..., N]` that are less than or equal to it.

    This is `searchsorted(..., side="right")` for a batch of rows: a stable sort puts a threshold before an equal
    position, so the count of a position is the number of thresholds sorted before it.
    """
    n_thresholds = thresholds.shape[-1]
    order = np.argsort(np.concatenate([thresholds, positions], axis=-1), axis=-1, kind="stable")
    seen = np.cumsum(order < n_thresholds, axis=-1, dtype=np.int64)
    counts = np.empty_like(seen)
    np.put_along_axis(counts, order, seen, axis=-1)
    return counts[..., n_thresholds:]
