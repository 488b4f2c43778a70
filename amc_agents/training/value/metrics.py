"""Metrics of a value model on held-out tasks: Pearson r, and AUC against the final success, overall and by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amc_agents.training.value.data import TargetRow
from amc_agents.types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


def pearson(values: FloatArray, targets: FloatArray) -> float | None:
    """Return the correlation of `[S]` values with `[S]` targets; None if either is constant.

    >>> round(pearson(np.array([0.1, 0.4, 0.8]), np.array([0.0, 0.0, 1.0])), 3)
    0.904
    """
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(targets) == 0:
        return None
    return float(np.corrcoef(values, targets)[0, 1])


def auc(values: FloatArray, success: FloatArray | BoolArray) -> float | None:
    """Return the probability that a success has a higher value than a failure, counting ties as half.

    None if the states are all successes or all failures.

    >>> auc(np.array([0.1, 0.2, 0.2, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive = success.astype(bool)
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        return None
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def evaluate(rows: Sequence[TargetRow], values: Sequence[FloatArray]) -> dict[str, Any]:
    """Compute the metrics of the values of all rows.

    The loss is over all states, as in training. Pearson r and AUC leave out final states: their outcome is known, which
    would inflate both.

    Args:
        rows: the validation rows.
        values: for each row, `[S]` the values at its marks.

    Returns:
        loss, baseline_loss (of the best constant), pearson, auc, auc_by_step {t: auc}, states, trajectories,
        success_rate. A metric that is not defined is None.
    """
    return evaluate_states(
        np.concatenate([np.asarray(of_row, dtype=np.float64) for of_row in values]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.states for row in rows]),
        np.concatenate([row.final for row in rows]),
        np.concatenate([np.full(len(row.marks), row.success) for row in rows]),
    )


def evaluate_states(
    value: FloatArray, target: FloatArray, state: IntArray, final: BoolArray, success: BoolArray
) -> dict[str, Any]:
    """Compute the metrics of `evaluate` from arrays.

    Args:
        value: `[S]` the values of all states.
        target: `[S]` their targets.
        state: `[S]` number t of each state.
        final: `[S]` whether the state is the end of its trajectory.
        success: `[S]` whether the whole return of its trajectory counts as a success.
    """
    live = ~final
    by_step = {int(t): auc(value[live & (state == t)], success[live & (state == t)]) for t in np.unique(state[live])}
    return {
        "loss": float(np.mean((value - target) ** 2)),
        "baseline_loss": float(np.var(target)),
        "pearson": pearson(value[live], target[live]),
        "auc": auc(value[live], success[live]),
        "auc_by_step": {t: area for t, area in by_step.items() if area is not None},
        "states": len(value),
        "trajectories": int(final.sum()),
        "success_rate": float(success[final].mean()) if final.any() else None,
    }
