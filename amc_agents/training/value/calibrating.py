"""Calibrates a value model after training, and says honestly how much that helped.

The held-out tasks are parted: some for early stopping and the reported metrics, others for the calibration. The map
that is saved is fitted on all of the latter; its error is measured by cross-fitting over them, so that no state is
judged by a map that has seen its task.
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
"""Of a calibration: a map takes two tasks, and a third one tries it."""
_FOLDS = 5
_LEAST_WEIGHT = 1e-12
"""Of a state, as a share of the largest."""


class Estimate(NamedTuple):
    """A figure and how sure it is."""

    mean: float
    standard_error: float
    """Over tasks: states of one task are no independent evidence."""


class States(NamedTuple):
    """`[n]` held-out states."""

    values: FloatArray
    """What the critic says of them, uncalibrated, in reward units."""
    targets: FloatArray
    """What it was to say."""
    tasks: npt.NDArray[Any]
    """The task of each."""
    weights: FloatArray
    """Above 0, of any sum: those of the loss, so that calibrated values mean what they were trained to mean."""


@dataclass(frozen=True)
class ValueCalibrationReport:
    """How far values are from outcomes on held-out tasks, before and after; "after" by cross-fitting over tasks."""

    kind: Kind
    n_states: int
    n_tasks: int
    n_folds: int
    error_before: Estimate
    """Expected calibration error: mean distance of prediction and outcome over ten bins of like predictions."""
    error_after: Estimate
    error_change: Estimate
    """After less before, paired: below 0 where calibration helps."""
    error_by_luck: float
    """What the error would be about if the calibrated values were all right: bins are small, and outcomes scatter."""
    squared_before: Estimate
    """Mean squared distance of a state's value from its outcome, most of which is luck."""
    squared_after: Estimate
    squared_change: Estimate
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]

    def as_plain(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint's `metrics["calibration"]`."""
        plain = asdict(self)
        for name, value in plain.items():
            if isinstance(value, Estimate):
                plain[name] = value._asdict()
        return {**plain, **{name: [one._asdict() for one in getattr(self, name)] for name in ("before", "after")}}


class Calibrated(NamedTuple):
    """A fitted map, and how well such a one holds on other tasks."""

    calibration: ValueCalibration
    report: ValueCalibrationReport


def calibration_tasks(held_out: Iterable[str], seed: int, share: float = 0.5) -> frozenset[str]:
    """Of the held-out tasks those for calibration; the others stop training early and make the metrics.

    Args:
        held_out: ids of the held-out tasks.
        seed: draws them, the same at every call.
        share: of the tasks that are given to calibration, at least three.

    Raises:
        ConfigurationError: fewer than three tasks would be left for calibration, or none for the metrics.
    """
    tasks = sorted(set(held_out))
    n = max(LEAST_TASKS, round(share * len(tasks)))
    if n >= len(tasks):
        raise ConfigurationError(
            f"{len(tasks)} tasks are held out, and a calibration needs {LEAST_TASKS} of its own besides at least one "
            "for the metrics: collect more tasks, hold out a larger share, or train without calibration"
        )
    chosen = np.random.default_rng([seed, 2]).permutation(len(tasks))[:n]
    return frozenset(tasks[index] for index in chosen)


def states_of(rows: Sequence[TargetRow], values: Sequence[FloatArray], tasks: Sequence[str], *, target: str) -> States:
    """The states of some rows that a run asks a critic about.

    A model of the return still to come is never asked about an end, where nothing is: such states would only make the
    error look small. One of the whole return is.

    Args:
        rows: `[n]` windows of held-out trajectories.
        values: `[n]` arrays `[S]`, the uncalibrated values at their marks.
        tasks: `[n]` the task of each.
        target: "future" or "return", as in training.
    """
    asked = [np.full(len(row.marks), True) if target == "return" else ~np.array(row.final) for row in rows]

    def chosen(numbers: Iterable[Sequence[float] | FloatArray]) -> FloatArray:
        parts = [np.asarray(one, dtype=np.float64)[some] for one, some in zip(numbers, asked, strict=True)]
        return np.concatenate(parts)

    weights = chosen(row.weights for row in rows)
    return States(
        chosen(values),
        chosen(row.targets for row in rows),
        np.repeat(np.array(tasks), [int(some.sum()) for some in asked]),
        # exp(G / beta) may come out as 0, and a bin of such states would have no mean.
        np.maximum(weights, _LEAST_WEIGHT * weights.max()),
    )


def calibrate(kind: Kind, states: States, seed: int = 0) -> Calibrated:
    """The map of all states, and its error by cross-fitting over tasks.

    Args:
        kind: "affine" or "isotonic".
        states: of tasks that were neither trained on nor used to choose anything.
        seed: draws the folds.

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
    for one in range(n_folds):
        tried = fold == one
        fitted = fit_value_calibration(kind, *(every[~tried] for every in states))
        after[tried] = fitted(values[tried])
    without = [_errors_without_each_task(said, targets, weights, number) for said in (values, after)]
    square_before, square_after = (values - targets) ** 2, (after - targets) ** 2
    before_bins, bins = (tuple(reliability(said, targets, groups, weights=weights)) for said in (values, after))
    _, bin_ = np.unique(bin_numbers(after), return_inverse=True)
    report = ValueCalibrationReport(
        kind=kind,
        n_states=len(values),
        n_tasks=len(tasks),
        n_folds=n_folds,
        error_before=_jackknife(without[0]),
        error_after=_jackknife(without[1]),
        error_change=_jackknife(without[1] - without[0]),
        error_by_luck=_error_by_luck(bins, np.asarray(np.bincount(bin_, weights), dtype=np.float64)),
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
    """`[tasks + 1]` expected calibration error: of all states, then without each task's, in the same bins."""
    _, bin_ = np.unique(bin_numbers(values), return_inverse=True)
    shape = int(task.max()) + 1, int(bin_.max()) + 1
    gaps = np.zeros(shape)
    np.add.at(gaps, (task, bin_), weights * (values - targets))
    left = np.abs(gaps.sum(axis=0) - gaps).sum(axis=1) / (weights.sum() - np.bincount(task, weights))
    return np.array([np.abs(gaps.sum(axis=0)).sum() / weights.sum(), *left])


def _error_by_luck(bins: Sequence[Bin], mass: FloatArray) -> float:
    """Mean of |z| x standard error over the bins by their weight, z standard normal; NaN where a bin has one task."""
    return float(np.sqrt(2 / np.pi) * np.average([one.standard_error for one in bins], weights=mass))


def _jackknife(figures: FloatArray) -> Estimate:
    """Of `[tasks + 1]` figures: the first, and its standard error by leaving one task out."""
    left, n = figures[1:], len(figures) - 1
    return Estimate(float(figures[0]), float(np.sqrt((n - 1) / n * np.sum((left - left.mean()) ** 2))))
