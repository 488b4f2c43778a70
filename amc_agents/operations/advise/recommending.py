"""Which replayed method is better than a single run, after the best of many was looked for.

Every difference is paired over tasks. Choosing the method with the largest difference flatters it, so a method is
recommended only if the bound of an interval that holds for all methods at once is above zero, and the figures of the
recommendation are cross-fitted: each task is answered by the method that the other tasks would have chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents.critics.reliability import t_quantile
from amc_agents.operations.advise.replay import Replayed
from amc_agents.types import FloatArray

N_RESAMPLES = 4_000
N_FOLDS = 10
IMAGINED = 0.5
"""Two imagined tasks at this share of the outcomes' range above and below widen every interval. Without them, an
interval over 20 tasks, few of which differ, covers the truth in 81% of 4,000 simulations; with them in at least 94% at
20, 50 and 90 tasks."""


@dataclass(frozen=True)
class Row:
    """A method's figures. `tokens`, `cost` and `latency` are multiples of those of a single run; None: not logged."""

    name: str
    k: int
    success: float
    difference: float
    """From the mean of single runs of the same tasks; of a single run, 0."""
    low: float
    high: float
    """95% interval of the difference, over tasks; of a single run, that of its success, minus its success."""
    tokens: float | None
    cost: float | None
    latency: float | None
    tasks: int
    """Number of tasks that have k runs."""
    deployable: bool = True
    stop: tuple[int, float] | None = None
    """Of an early stop: the step after which runs are judged, and the value below which they are stopped."""

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values; an infinite threshold, which stops all, is null."""
        plain = {name: value for name, value in vars(self).items() if name != "stop"}
        if self.stop is not None:
            plain |= {"at_step": self.stop[0], "below": self.stop[1] if math.isfinite(self.stop[1]) else None}
        return plain


def rows_of(replayed: Sequence[Replayed], scale: float = 1.0) -> list[Row]:
    """Compare every method with a single run.

    Args:
        replayed: the first is the single run.
        scale: range of the outcomes, largest minus smallest.
    """
    single = replayed[0]
    return [_row(method, single, scale) for method in replayed]


def interval(differences: FloatArray, scale: float = 1.0) -> tuple[float, float]:
    """Return the 95% interval of the mean of paired differences over tasks; infinite for a single task."""
    if len(differences) < 2:
        return -math.inf, math.inf
    mean, half = float(differences.mean()), t_quantile(len(differences) - 1) * standard_error(differences, scale)
    return mean - half, mean + half


def standard_error(differences: FloatArray, scale: float = 1.0) -> float:
    """Return the standard error of a mean over tasks, widened as `IMAGINED` says."""
    widened = np.append(differences, [IMAGINED * scale, -IMAGINED * scale])
    return float(widened.std(ddof=1) / math.sqrt(len(differences)))


def recommend(replayed: Sequence[Replayed], scale: float = 1.0, *, seed: int = 0) -> Row | None:
    """Return the method that is best after the correction for choosing it; None: nothing is better than a single run.

    Args:
        replayed: the first is the single run.
        scale: range of the outcomes, largest minus smallest.
        seed: of the resampled tasks.

    Returns:
        The row of the method; all its figures are cross-fitted over tasks.
    """
    single, *others = replayed
    candidates = [method for method in others if method.deployable and not np.isnan(method.success).any()]
    if not candidates or len(single.success) < 2:
        return None
    differences = np.array([method.success - single.success for method in candidates])
    best = _chosen(differences, scale)
    if not simultaneous_low(differences, scale, seed=seed)[best] > 0:
        return None
    # Each task is answered as the tasks of the other folds advise.
    folds = np.random.default_rng(seed).permutation(len(single.success)) % min(N_FOLDS, len(single.success))
    chosen = np.empty(len(folds), dtype=np.int64)
    for fold in np.unique(folds):
        chosen[folds == fold] = _chosen(differences[:, folds != fold], scale)
    columns = np.arange(len(folds))

    def pick(name: str) -> FloatArray:
        values: FloatArray = np.array([getattr(method, name) for method in candidates])[chosen, columns]
        return values

    winner = candidates[best]
    fields: Mapping[str, FloatArray] = {name: pick(name) for name in ("success", "tokens", "cost", "seconds")}
    chosen_by_task = Replayed(
        winner.name, winner.k, fields["success"], fields["tokens"], fields["cost"], fields["seconds"],
        stop=winner.stop,
    )  # fmt: skip
    return _row(chosen_by_task, single, scale)


def simultaneous_low(differences: FloatArray, scale: float = 1.0, *, seed: int = 0) -> FloatArray:
    """`[methods]` lower bounds of the differences, which hold for all methods at once with 97.5% (max-t bootstrap).

    Args:
        differences: `[methods, tasks]` paired differences.
        scale: as in `interval`.
        seed: of the resampled tasks.
    """
    n = differences.shape[1]
    means = differences.mean(axis=1)
    errors = np.array([standard_error(row, scale) for row in differences])
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES)
    largest = (((counts @ differences.T) / n - means) / errors).max(axis=1)
    # For few tasks, no narrower than Student's t of a single method.
    critical = max(float(np.quantile(largest, 0.975)), t_quantile(n - 1))
    bounds: FloatArray = means - critical * errors
    return bounds


def _chosen(differences: FloatArray, scale: float) -> int:
    """Return the index of the method with the highest lower bound; ties go to the earlier, cheaper one."""
    return int(np.argmax([interval(row, scale)[0] for row in differences]))


def _row(method: Replayed, single: Replayed, scale: float) -> Row:
    there = ~np.isnan(method.success)
    differences = (method.success - single.success)[there]
    own = method.success[there] - method.success[there].mean()
    low, high = interval(own if method is single else differences, scale)

    def multiple(name: str) -> float | None:
        ratio = getattr(method, name)[there].sum() / getattr(single, name)[there].sum()
        return float(ratio) if math.isfinite(ratio) else None

    return Row(
        method.name, method.k, float(method.success[there].mean()), float(differences.mean()), low, high,
        tokens=multiple("tokens"), cost=multiple("cost"), latency=multiple("seconds"), tasks=int(there.sum()),
        deployable=method.deployable, stop=method.stop,
    )  # fmt: skip
