"""Resampling without replacement: at most N distinct particles, with unequal weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.smc import log_sum_exp, normalised, systematic
from amc_agents.types import FloatArray, IntArray


def without_replacement(rng: np.random.Generator, log_weights: FloatArray, n: int) -> tuple[IntArray, FloatArray]:
    """Choose at most n of M weighted particles (Fearnhead and Clifford 2003, optimal resampling).

    Particles above a threshold are kept with their weights; of the others, some are drawn, and all drawn ones get the
    threshold as their weight. Every expected weight is unchanged, and so is the total, exactly.

    Args:
        rng: source of the draw.
        log_weights: `[M]` not all of them -inf.
        n: number of particles to keep.

    Returns:
        `[<=n]` indices in ascending order, and their log-weights.
    """
    alive = np.flatnonzero(log_weights > -np.inf)
    if len(alive) <= n:
        return alive, log_weights[alive]
    weights = normalised(log_weights[alive])
    order = np.argsort(-weights, kind="stable")
    rest = np.concatenate([np.cumsum(weights[order][::-1])[::-1], [0.0]])
    # With the A heaviest kept, the threshold is the rest's weight over n - A; all of the rest must lie below it.
    certain = next(a for a in range(n) if weights[order[a]] * (n - a) < rest[a] * (1 + 1e-12))
    kept, others = order[:certain], order[certain:]
    log_threshold = np.log(rest[certain] / (n - certain)) + float(log_sum_exp(log_weights[alive]))
    drawn = np.unique(others[systematic(rng, np.log(weights[others]), n - certain)])
    chosen = np.concatenate([kept, drawn])
    new = np.concatenate([log_weights[alive[kept]], np.full(len(drawn), log_threshold)])
    ascending = np.argsort(chosen)
    return alive[chosen[ascending]], new[ascending]


def merged_log_weights(keys: Sequence[Any], log_weights: FloatArray) -> tuple[IntArray, FloatArray]:
    """`[M]` index of the first particle of each state, and `[M]` the states' total log-weights."""
    groups: dict[Any, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    first = np.array([members[0] for members in groups.values()])
    return first, np.array([float(log_sum_exp(log_weights[members])) for members in groups.values()])


def shared_out(calls: int, log_weights: FloatArray) -> IntArray:
    """`[N]` turns per particle: equal shares, and the remainder to the heaviest particles; at least 1."""
    n = len(log_weights)
    shares = np.full(n, max(1, calls // n))
    heaviest = np.argsort(-log_weights, kind="stable")
    shares[heaviest[: max(0, calls - int(shares.sum()))]] += 1
    return shares
