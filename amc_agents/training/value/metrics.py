"""How good a value model is on held-out tasks: Pearson r, and AUC by step against the final success."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amc_agents.training.value.data import TargetRow
from amc_agents.types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


def pearson(values: FloatArray, targets: FloatArray) -> float | None:
    """Correlation of `[S]` values with `[S]` targets; None where either does not vary.

    >>> round(pearson(np.array([0.1, 0.4, 0.8]), np.array([0.0, 0.0, 1.0])), 3)
    0.904
    """
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(targets) == 0:
        return None
    return float(np.corrcoef(values, targets)[0, 1])


def auc(values: FloatArray, success: FloatArray | BoolArray) -> float | None:
    """Chance that a success is valued above a failure, ties counting half; None with one kind only.

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
    """Metrics of the values of all rows.

    Loss is over every state, as in training. Pearson and AUC are over states that still have a future:
    the final ones are known, and would flatter both.

    Args:
        rows: the validation rows.
        values: for each row, `[S]` the values at its marks.

    Returns:
        loss, baseline_loss (of the best constant), pearson, auc, auc_by_step {t: auc}, states, trajectories,
        success_rate; a figure that is not defined is None.
    """
    return evaluate_states(
        np.concatenate([np.asarray(one, dtype=np.float64) for one in values]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.states for row in rows]),
        np.concatenate([row.final for row in rows]),
        np.concatenate([np.full(len(row.marks), row.success) for row in rows]),
    )


def evaluate_states(
    value: FloatArray, target: FloatArray, state: IntArray, final: BoolArray, success: BoolArray
) -> dict[str, Any]:
    """The metrics of `evaluate`, from plain arrays.

    Args:
        value: `[S]` the values of all states.
        target: `[S]` what they should be.
        state: `[S]` number t of each state.
        final: `[S]` whether it is its trajectory's end.
        success: `[S]` whether its trajectory's whole return counts as a success.
    """
    live = ~final
    by_step = {int(t): auc(value[live & (state == t)], success[live & (state == t)]) for t in np.unique(state[live])}
    return {
        "loss": float(np.mean((value - target) ** 2)),
        "baseline_loss": float(np.var(target)),
        "pearson": pearson(value[live], target[live]),
        "auc": auc(value[live], success[live]),
        "auc_by_step": {t: one for t, one in by_step.items() if one is not None},
        "states": len(value),
        "trajectories": int(final.sum()),
        "success_rate": float(success[final].mean()) if final.any() else None,
    }
