"""Calibrate a value model after training, and estimate how much that helps.

The held-out tasks are split: some for early stopping and the reported metrics, the others for calibration. The saved
map is fitted on all calibration tasks. Its error is measured by cross-fitting over them, so that no state is predicted
by a map fitted on its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.reliability import Bin, bin_numbers, clustered_mean, reliability
from amc_agents.critics.value.value_calibration import Kind, ValueCalibration, fit_value_calibration
from amc_agents.errors import ConfigurationError
from amc_agents.training.value.data import TargetRow
from amc_agents.types import FloatArray

LEAST_TASKS = 3
"""Fewest tasks of a calibration: two to fit a map, and a third to test it."""
_FOLDS = 5
_LEAST_WEIGHT = 1e-12
"""Lower bound for the weight of a state, as a share of the largest weight."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float
    """Clustered by task, because states of a task are not independent."""


class States(NamedTuple):
    """`[n]` held-out states."""

    values: FloatArray
    """The critic's uncalibrated values, in reward units."""
    targets: FloatArray
    """The targets of these values."""
    tasks: npt.NDArray[Any]
    """Id of each state's task."""
    weights: FloatArray
    """Weights of the loss, positive, not normalised. With them, calibrated values keep the meaning of the loss."""


@dataclass(frozen=True)
class ValueCalibrationReport:
    """Distance of values from outcomes on held-out tasks before and after calibration, "after" by cross-fitting."""

    kind: Kind
    n_states: int
    n_tasks: int
    n_folds: int
    error_before: Estimate
    """Expected calibration error: mean distance of prediction and outcome over ten bins of similar predictions."""
    error_after: Estimate
    error_change: Estimate
    """After minus before, paired: negative if calibration helps."""
    noise_floor: float
    """Expected calibration error of perfectly calibrated values, because bins are small and outcomes vary."""
    squared_before: Estimate
    """Mean squared distance of a state's value from its outcome. Most of it is the variance of outcomes."""
    squared_after: Estimate
    squared_change: Estimate
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint's `metrics["calibration"]`."""
        plain = asdict(self)
        for name, value in plain.items():
            if isinstance(value, Estimate):
                plain[name] = value._asdict()
        # The key of the file format.
        plain["error_by_luck"] = plain.pop("noise_floor")
        return {**plain, **{name: [bin_._asdict() for bin_ in getattr(self, name)] for name in ("before", "after")}}


class Calibrated(NamedTuple):
    """A fitted map, and an estimate of how well it generalises to other tasks."""

    calibration: ValueCalibration
    report: ValueCalibrationReport


def calibration_tasks(held_out: Iterable[str], seed: int, share: float = 0.5) -> frozenset[str]:
    """Draw the tasks for calibration from the held-out tasks. The others serve early stopping and the metrics.

    Args:
        held_out: ids of the held-out tasks.
        seed: seed of the draw.
        share: share of the tasks for calibration, of which there are at least three.

    Raises:
        ConfigurationError: no task would be left for the metrics.
    """
    tasks = sorted(set(held_out))
    n = max(LEAST_TASKS, round(share * len(tasks)))
    if n >= len(tasks):
        raise ConfigurationError(
            f"{len(tasks)} tasks are held out, but a calibration needs {LEAST_TASKS} and the metrics at least one: "
            "collect more tasks, hold out a larger share, or train without calibration"
        )
    chosen = np.random.default_rng([seed, 2]).permutation(len(tasks))[:n]
    return frozenset(tasks[index] for index in chosen)


def states_of(rows: Sequence[TargetRow], values: Sequence[FloatArray], tasks: Sequence[str], *, target: str) -> States:
    """Select the states of some rows that a run passes to a critic.

    For a model of the return still to come, a run skips the ends of trajectories, where no return is left. Including
    them here would only make the error look smaller. A model of the whole return gets them too.

    Args:
        rows: `[n]` windows of held-out trajectories.
        values: `[n]` arrays `[S]`, the uncalibrated values at their marks.
        tasks: `[n]` the task of each row.
        target: "future" or "return", as in training.
    """
    selected = [np.full(len(row.marks), True) if target == "return" else ~np.array(row.final) for row in rows]

    def chosen(numbers: Iterable[Sequence[float] | FloatArray]) -> FloatArray:
        parts = [np.asarray(of_row, np.float64)[mask] for of_row, mask in zip(numbers, selected, strict=True)]
        return np.concatenate(parts)

    weights = chosen(row.weights for row in rows)
    return States(
        chosen(values),
        chosen(row.targets for row in rows),
        np.repeat(np.array(tasks), [int(mask.sum()) for mask in selected]),
        # exp(G / beta) may underflow to 0, and a bin of such states would have no mean.
        np.maximum(weights, _LEAST_WEIGHT * weights.max()),
    )


def calibrate(kind: Kind, states: States, seed: int = 0) -> Calibrated:
    """Fit a map on all states, and measure its error by cross-fitting over tasks.

    Args:
        kind: "affine" or "isotonic".
        states: states of tasks that were used neither for training nor for any choice.
        seed: seed of the folds.

    Raises:
        ConfigurationError: there are fewer than three tasks, or a number is not finite.
    """
    values, targets, groups, weights = states
    tasks, number = np.unique(groups, return_inverse=True)
    if len(tasks) < LEAST_TASKS:
        raise ConfigurationError(
            f"the calibration has held-out states of {len(tasks)} tasks and needs {LEAST_TASKS}: collect more tasks, "
            "hold out a larger share, or train without calibration"
        )
    n_folds = min(_FOLDS, len(tasks))
    fold = np.random.default_rng(seed).permutation(len(tasks))[number] % n_folds
    after = np.empty(len(values))
    for number_of_fold in range(n_folds):
        tested = fold == number_of_fold
        fitted = fit_value_calibration(kind, *(array[~tested] for array in states))
        after[tested] = fitted(values[tested])
    errors_before, errors_after = (
        _errors_without_each_task(predicted, targets, weights, number) for predicted in (values, after)
    )
    square_before, square_after = (values - targets) ** 2, (after - targets) ** 2
    before_bins, bins = (
        tuple(reliability(predicted, targets, groups, weights=weights)) for predicted in (values, after)
    )
    _, bin_ = np.unique(bin_numbers(after), return_inverse=True)
    report = ValueCalibrationReport(
        kind=kind,
        n_states=len(values),
        n_tasks=len(tasks),
        n_folds=n_folds,
        error_before=_jackknife(errors_before),
        error_after=_jackknife(errors_after),
        error_change=_jackknife(errors_after - errors_before),
        noise_floor=_noise_floor(bins, np.asarray(np.bincount(bin_, weights), dtype=np.float64)),
        squared_before=Estimate(*clustered_mean(square_before, groups, weights)),
        squared_after=Estimate(*clustered_mean(square_after, groups, weights)),
        squared_change=Estimate(*clustered_mean(square_after - square_before, groups, weights)),
        before=before_bins,
        after=bins,
    )
    return Calibrated(fit_value_calibration(kind, *states), report)


def _errors_without_each_task(
    values: FloatArray, targets: FloatArray, weights: FloatArray, task: npt.NDArray[Any]
) -> FloatArray:
    """Return the `[tasks + 1]` expected calibration errors of all states, then without each task, in the same bins."""
    _, bin_ = np.unique(bin_numbers(values), return_inverse=True)
    shape = int(task.max()) + 1, int(bin_.max()) + 1
    gaps = np.zeros(shape)
    np.add.at(gaps, (task, bin_), weights * (values - targets))
    left = np.abs(gaps.sum(axis=0) - gaps).sum(axis=1) / (weights.sum() - np.bincount(task, weights))
    return np.array([np.abs(gaps.sum(axis=0)).sum() / weights.sum(), *left])


def _noise_floor(bins: Sequence[Bin], mass: FloatArray) -> float:
    """Return the weighted mean of E|z| x standard error over the bins, z standard normal; NaN if a bin has one task."""
    return float(np.sqrt(2 / np.pi) * np.average([bin_.standard_error for bin_ in bins], weights=mass))


def _jackknife(figures: FloatArray) -> Estimate:
    """Return the first of `[tasks + 1]` figures, and its standard error from the others, each without a task."""
    left, n = figures[1:], len(figures) - 1
    return Estimate(float(figures[0]), float(np.sqrt((n - 1) / n * np.sum((left - left.mean()) ** 2))))
