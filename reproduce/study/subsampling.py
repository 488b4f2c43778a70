"""Best-of-N for every N from a pool of independent trajectories: the expectation over all subsets of size N."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np

from amc_agents.bench.records import TOP, Particles
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray


def best_of(particles: Particles, n: int, *, success: float = 1.0, draws: int = 200, seed: int = 0) -> dict[str, float]:
    """Compute the expected scores of Best-of-N on a task, over all subsets of N of the pool's M trajectories.

    The results are exact, except for means over distinct trajectories, which are averaged over random subsets.

    Args:
        particles: M independent trajectories, played and valued without rewards.
        n: N, at most M.
        success: minimum return of a success, in reward units.
        draws: number of random subsets for the means over distinct trajectories.
        seed: seed of these subsets.

    Returns:
        `oracle`, `success`, `deployable` (the pick of the highest value, uniformly among several that have
        it), `top5`, `mean` and `mean_distinct`: see `amc_agents.bench.records.Scores`.

    Raises:
        ConfigurationError: N is not within 1 to M.
    """
    returns, values = np.array(particles.returns), np.array(particles.values)
    size = len(returns)
    if not 1 <= n <= size:
        raise ConfigurationError(f"Best-of-N from a pool of {size} trajectories needs N from 1 to {size}, got {n}")
    first = _kth_best(size, n, 1)
    ranked = np.sort(returns)[::-1]
    top = min(TOP, n)
    return {
        "oracle": float(first @ ranked),
        "success": float(first @ (ranked >= success)),
        "deployable": float(first @ _by_value(returns, values)),
        "top5": float(_kth_best(size, n, top) @ ranked) / top,
        "mean": float(returns.mean()),
        "mean_distinct": _mean_distinct(returns, particles.same_as, n, draws, seed),
    }


def expected_top(returns: Sequence[float], n: float, k: int = 1) -> float:
    """Compute the expected mean of the k highest returns among N of a pool's trajectories, over all subsets.

    Args:
        returns: returns of M independent trajectories.
        n: N, from k to M. Between two whole numbers the result is interpolated linearly, so that a budget need not be
            a whole number of trajectories.
        k: number of returns to average; 1: the oracle's pick.

    Raises:
        ConfigurationError: N is not within k to M.
    """
    size = len(returns)
    if not k <= n <= size:
        raise ConfigurationError(
            f"the top {k} of N trajectories from a pool of {size} need N from {k} to {size}, got {n:g}"
        )
    ranked = np.sort(np.array(returns))[::-1]
    below, above = (float(_kth_best(size, whole, k) @ ranked) / k for whole in (math.floor(n), math.ceil(n)))
    return below + (n - math.floor(n)) * (above - below)


def expected_pick(particles: Particles, n: float, metric: str) -> float:
    """Compute the expected pick among n of a pool's trajectories, interpolated linearly; at most of the whole pool.

    Args:
        particles: independent trajectories.
        n: number of tries.
        metric: a key of `best_of`.
    """
    size = len(particles.returns)
    low, high = (min(size, whole) for whole in (math.floor(n), math.ceil(n)))
    below, above = (best_of(particles, whole, draws=1)[metric] for whole in (low, high))
    return below + (n - math.floor(n)) * (above - below)


def distinct_successes(particles: Particles, n: int, *, success: float = 1.0) -> float:
    """Compute the expected number of distinct successes among N of a pool's trajectories, over all subsets.

    Args:
        particles: M independent trajectories.
        n: N, at most M.
        success: minimum return of a success, in reward units.
    """
    size = len(particles.returns)
    pairs = zip(particles.same_as, particles.returns, strict=True)
    copies = Counter(kind for kind, return_ in pairs if return_ >= success)
    return sum(1 - comb(size - many, n) / comb(size, n) for many in copies.values())


@lru_cache(maxsize=256)
def _kth_best(size: int, n: int, k: int) -> FloatArray:
    """`[M]` probability that the i-th best of a pool is among the k best of a random subset of n."""
    subsets = comb(size, n)
    return np.array(
        [sum(comb(above, m) * comb(size - 1 - above, n - 1 - m) for m in range(k)) / subsets for above in range(size)]
    )


def _by_value(returns: FloatArray, values: FloatArray) -> FloatArray:
    """`[M]` returns in descending order of value; equal values share their mean return."""
    _, tied = np.unique(-values, return_inverse=True)
    mean = np.bincount(tied, weights=returns) / np.bincount(tied)
    return np.asarray(mean[np.sort(tied)])


def _mean_distinct(returns: FloatArray, same_as: Sequence[int], n: int, draws: int, seed: int) -> float:
    kinds = np.array(same_as)
    if n == len(kinds):
        return float(returns[np.unique(kinds)].mean())
    rng = np.random.default_rng(seed)
    chosen = (np.unique(kinds[rng.permutation(len(kinds))[:n]]) for _ in range(draws))
    return float(np.mean([returns[kind].mean() for kind in chosen]))
