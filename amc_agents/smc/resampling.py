"""Four resampling schemes, from log-weights to ancestors.

Each is unbiased: the expected number of offspring of particle i is n_offspring x p_i. They differ in the variance of
that number: multinomial (the paper's) has the most, then residual and stratified, then systematic.
A particle of weight 0 is never an ancestor, whatever the random numbers and the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.smc.weights import normalised
from amc_agents.types import FloatArray, IntArray

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
