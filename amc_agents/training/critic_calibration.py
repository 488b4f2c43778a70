"""Calibrate values to outcomes, and measure by cross-fitting over tasks what that gains.

A value model can be calibrated at the end of its training, on held-out tasks that serve no other purpose
(`calibrate`), and any critic later, to your own outcomes (`calibrate_critic`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.calibration import (
    CalibratedCritic,
    Kind,
    ValueCalibration,
    fit_value_calibration,
    load_calibrated,
    save_calibrated,
)
from amc_agents.critics.reliability import Bin, bin_numbers, clustered_mean, reliability, t_quantile
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.training.data_checks import NO_OUTCOME
from amc_agents.training.dataset import dataset_hash, iter_records
from amc_agents.training.ranking import Interval, ranking
from amc_agents.training.score_file import scored_values, scoring_plan
from amc_agents.training.scoring import ScoringProgress, score, value_critic
from amc_agents.training.value.rows import TargetRow
from amc_agents.training.value.targets import returns_to_come
from amc_agents.types import FloatArray, Trajectory

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
    after = np.empty(len(values))
    for tested in _folds(groups, seed):
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
        n_folds=min(_FOLDS, len(tasks)),
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


LEAST_TASKS_TO_CHOOSE = 6
"""Fewest tasks: five folds, each with tasks to choose a map and to fit it."""
Choice = Literal["auto", "affine", "isotonic", "logistic"]


class Loss(NamedTuple):
    """A mean loss over states, with its 95% interval over tasks."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationGain:
    """What a calibration gains. "After" is cross-fitted: each task's values pass through a map fitted on the others."""

    kind: Kind
    n_states: int
    n_tasks: int
    squared_before: Loss
    """Mean squared distance of value and outcome: the Brier score for outcomes of 0 and 1."""
    squared_after: Loss
    squared_change: Loss
    """After minus before, paired: below 0 if the calibration helps."""
    log_loss_before: Loss | None
    """None unless there are two different outcomes. A value outside of them counts as (almost) certain."""
    log_loss_after: Loss | None
    log_loss_change: Loss | None
    auc_before: Interval | None
    """AUC of runs at the same step, see `ranking`. The map can only turn differences into ties."""
    auc_after: Interval | None

    @property
    def helps(self) -> bool:
        """Whether the squared error is smaller, by its interval."""
        return self.squared_change.high < 0

    @property
    def sentence(self) -> str:
        """The result in words."""
        change = f"{self.squared_change.mean:+.4f} (95% interval {self.squared_change.low:+.4f} to "
        change += f"{self.squared_change.high:+.4f}; {self.n_tasks:,} tasks)"
        if self.helps:
            return f"Calibration helps: it changes the squared error by {change}."
        if self.squared_change.low > 0:
            return f"Calibration harms: it changes the squared error by {change}. Use the critic itself."
        return f"No gain is certain: calibration changes the squared error by {change}."

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        plain = {
            name: value._asdict() if isinstance(value, Loss | Interval) else value
            for name, value in asdict(self).items()
        }
        return plain | {"sentence": self.sentence}


def calibrate_critic(
    critic: str,
    data: str | Path,
    out: str | Path,
    *,
    kind: Choice = "auto",
    seed: int = 0,
    progress: Callable[[ScoringProgress], None] | None = None,
) -> CalibrationGain:
    """Fit a map from a critic's values to the outcomes of a dataset; `calibrated:OUT` is the calibrated critic.

    The critic scores every state first, which an interrupted call resumes. The map is fitted to the states that a run
    passes to a critic, of finished trajectories with a known outcome.

    Args:
        critic: the critic's string.
        data: folder of a dataset with runs of tasks that the critic was not trained on.
        out: folder to write: `values.parquet`, as `score` writes it, and `amc_calibration.json`.
        kind: the map. "auto": isotonic, or a map of two parameters, whichever has the smaller cross-fitted error:
            logistic for two different outcomes, affine otherwise.
        seed: seed of the folds.
        progress: called after each part of the scoring.

    Returns:
        What the calibration gains.

    Raises:
        ConfigurationError: the critic was trained on this dataset or by eq. 5, there are too few tasks, or all outcomes
            are equal, or the map does not suit the outcomes.
        CheckpointError: the dataset or the critic cannot be read, or no outcome is known.
        CriticError: the critic failed.
    """
    if kind not in ("auto", "affine", "isotonic", "logistic"):
        raise ConfigurationError(f"kind is {quoted(kind)}: expected 'auto', 'affine', 'isotonic' or 'logistic'")
    _check(critic, data)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    values = folder / "values.parquet"
    score(critic, data, values, progress=progress)
    runs = _Runs(values, data)
    chosen, calibration, after = cross_fitted(runs.states(), kind, seed)
    gain = _gain(runs, chosen, after, seed)
    save_calibrated(folder, critic, calibration, gain.as_plain())
    load_calibrated(folder)
    return gain


class CalibrationStates(NamedTuple):
    """`[n]` states of finished trajectories."""

    values: FloatArray
    outcomes: FloatArray
    """The observed quantity that the critic predicts."""
    tasks: npt.NDArray[Any]
    """Number of each state's task."""


def cross_fitted(
    states: CalibrationStates, kind: Choice = "auto", seed: int = 0
) -> tuple[Kind, ValueCalibration, FloatArray]:
    """Choose and fit a map on all states, and return it with `[n]` values of maps that were fitted on other tasks.

    The choice is made anew, by cross-fitting, for every fold, so that it does not flatter the cross-fitted values.

    Raises:
        ConfigurationError: there are too few tasks, all outcomes are equal, or the map does not suit the outcomes.
    """
    n_tasks, n_outcomes = len(np.unique(states.tasks)), len(np.unique(states.outcomes))
    if n_tasks < LEAST_TASKS_TO_CHOOSE or n_outcomes < 2:
        raise ConfigurationError(
            f"a calibration needs finished runs of at least {LEAST_TASKS_TO_CHOOSE} tasks and different outcomes, got "
            f"{n_tasks} tasks and {n_outcomes} outcomes: add runs or outcomes"
        )
    two_parameters: Kind = "logistic" if n_outcomes == 2 else "affine"
    kinds: tuple[Kind, ...] = ("isotonic", two_parameters) if kind == "auto" else (kind,)
    after = np.empty(len(states.values))
    for tested in _folds(states.tasks, seed):
        rest = CalibrationStates(*(column[~tested] for column in states))
        after[tested] = _fit(rest, _best(rest, kinds, seed))(states.values[tested])
    chosen = _best(states, kinds, seed)
    return chosen, _fit(states, chosen), after


def _best(states: CalibrationStates, kinds: tuple[Kind, ...], seed: int) -> Kind:
    """Return the map with the smallest cross-fitted squared error."""
    if len(kinds) == 1:
        return kinds[0]
    errors = dict.fromkeys(kinds, 0.0)
    for tested in _folds(states.tasks, seed + 1):
        rest = CalibrationStates(*(column[~tested] for column in states))
        for kind in kinds:
            fitted = _fit(rest, kind)(states.values[tested])
            errors[kind] += float(np.sum((fitted - states.outcomes[tested]) ** 2))
    return min(errors, key=lambda kind: errors[kind])


def _fit(states: CalibrationStates, kind: Kind) -> ValueCalibration:
    if kind == "logistic" and np.ptp(states.outcomes) == 0:  # a fold may lack one of the outcomes
        kind = "affine"
    return fit_value_calibration(kind, states.values, states.outcomes, states.tasks)


def _folds(tasks: npt.NDArray[Any], seed: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield `[n]` masks of the tested states, for at most `_FOLDS` folds of whole tasks."""
    names, number = np.unique(tasks, return_inverse=True)
    n_folds = min(_FOLDS, len(names))
    fold = np.random.default_rng(seed).permutation(len(names))[number] % n_folds
    for tested in range(n_folds):
        yield fold == tested


class _Runs:
    """The finished trajectories of a scored dataset with a known outcome."""

    def __init__(self, values: Path, data: str | Path) -> None:
        self._values, self._data = values, data
        self.predicts = scoring_plan(values).predicts

    def __iter__(self) -> Iterator[tuple[Trajectory, FloatArray]]:
        for record, values in zip(iter_records(self._data), scored_values(self._values), strict=True):
            if record.trajectory.done and record.outcome_known:
                yield record.trajectory, values

    def states(self) -> CalibrationStates:
        """The states that a run passes to the critic: without the ends, for a critic of the return to come."""
        numbers: dict[str, int] = {}
        columns: tuple[list[FloatArray], ...] = ([], [], [])
        for trajectory, values in self:
            n = self.n_states(trajectory)
            future = self.predicts == "future"
            outcomes = returns_to_come(trajectory) if future else np.full(n, trajectory.return_)
            task = numbers.setdefault(trajectory.task.id, len(numbers))
            for column, part in zip(columns, (values[:n], outcomes[:n], np.full(n, task)), strict=True):
                column.append(np.asarray(part))
        if not columns[0]:
            raise CheckpointError(NO_OUTCOME)
        return CalibrationStates(*map(np.concatenate, columns))

    def n_states(self, trajectory: Trajectory) -> int:
        return len(trajectory.steps) + (self.predicts != "future")

    def with_values(self, flat: FloatArray) -> Iterator[tuple[Trajectory, FloatArray]]:
        """Yield the trajectories with other values of the states of `states`; the rest keep theirs."""
        start = 0
        for trajectory, values in self:
            n = self.n_states(trajectory)
            yield trajectory, np.concatenate([flat[start : start + n], values[n:]])
            start += n


def _gain(runs: _Runs, kind: Kind, after: FloatArray, seed: int) -> CalibrationGain:
    states = runs.states()
    before, outcomes, tasks = states
    squared = [(values - outcomes) ** 2 for values in (before, after)]
    log_losses = [_log_losses(values, outcomes) for values in (before, after)] if len(np.unique(outcomes)) == 2 else []
    aucs = [ranking(each, predicts=runs.predicts, seed=seed).auc for each in (runs, runs.with_values(after))]
    return CalibrationGain(
        kind=kind,
        n_states=len(before),
        n_tasks=len(np.unique(tasks)),
        squared_before=_mean(squared[0], tasks),
        squared_after=_mean(squared[1], tasks),
        squared_change=_mean(squared[1] - squared[0], tasks),
        log_loss_before=_mean(log_losses[0], tasks) if log_losses else None,
        log_loss_after=_mean(log_losses[1], tasks) if log_losses else None,
        log_loss_change=_mean(log_losses[1] - log_losses[0], tasks) if log_losses else None,
        auc_before=aucs[0],
        auc_after=aucs[1],
    )


def _log_losses(values: FloatArray, outcomes: FloatArray) -> FloatArray:
    low, high = outcomes.min(), outcomes.max()
    chance = np.clip((values - low) / (high - low), _LEAST_CHANCE, 1 - _LEAST_CHANCE)
    losses: FloatArray = -np.log(np.where(outcomes == high, chance, 1 - chance))
    return losses


def _mean(losses: FloatArray, tasks: npt.NDArray[Any]) -> Loss:
    mean, error = clustered_mean(losses, tasks)
    half = t_quantile(len(np.unique(tasks)) - 1) * error
    return Loss(mean, mean - half, mean + half)


def _check(critic: str, data: str | Path) -> None:
    """Refuse critics whose values on this dataset, or of their kind, must not be calibrated."""
    built = value_critic(critic)
    if isinstance(built, CalibratedCritic):
        raise ConfigurationError(f"critic {quoted(critic)} is calibrated already: calibrate the critic in it instead")
    if getattr(built, "beta", None) is not None:
        raise ConfigurationError(
            f"critic {quoted(critic)} was trained by eq. 5: its values are no means of outcomes, so a calibration "
            "would change their meaning"
        )
    checkpoint = getattr(built, "checkpoint", None)
    if checkpoint is not None and checkpoint.data_hash == dataset_hash(data):
        raise ConfigurationError(
            f"critic {quoted(critic)} was trained on {data}, so its errors there are too small: calibrate it on runs "
            "of other tasks, or train it with --calibration, which holds out tasks for that"
        )


_LEAST_CHANCE = 1e-6
"""Bound of a probability in the log loss."""
