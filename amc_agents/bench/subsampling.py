"""Best-of-N for every N from one pool of independent trajectories: the expectation over all subsets of size N."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from amc_agents.bench.scores import TOP, Particles
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray


def best_of(particles: Particles, n: int, *, success: float = 1.0, draws: int = 200, seed: int = 0) -> dict[str, float]:
    """What Best-of-N is worth on a task, by metric, averaged over which N of the pool's M trajectories it had.

    Exact but for the means over distinct trajectories, which are averages over random subsets.

    Args:
        particles: M independent trajectories, made and valued without seeing rewards.
        n: N, at most M.
        success: least return that counts as a success, in reward units.
        draws: subsets that the means over distinct trajectories are averaged over.
        seed: of those subsets.

    Returns:
        `oracle`, `success`, `deployable` (the pick of the highest value, an equal chance for each where several have
        it), `top5`, `mean` and `mean_distinct`: see `amc_agents.bench.scores.Scores`.

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


def _kth_best(size: int, n: int, k: int) -> FloatArray:
    """`[M]` chance of the i-th best of a pool to be among the k best of a random subset of n."""
    subsets = comb(size, n)
    return np.array(
        [sum(comb(above, m) * comb(size - 1 - above, n - 1 - m) for m in range(k)) / subsets for above in range(size)]
    )


def _by_value(returns: FloatArray, values: FloatArray) -> FloatArray:
    """`[M]` returns in falling order of value; those of equal value share theirs."""
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
