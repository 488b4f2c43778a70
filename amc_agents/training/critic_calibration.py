"""Calibrate any critic to your own outcomes, and measure by cross-fitting over tasks what that gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.reliability import clustered_mean, t_quantile
from amc_agents.critics.value.calibrated import CalibratedCritic, load_calibrated, save_calibrated
from amc_agents.critics.value.value_calibration import Kind, ValueCalibration, fit_value_calibration
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.training.data_checks import NO_OUTCOME
from amc_agents.training.dataset import dataset_hash, iter_records
from amc_agents.training.ranking import Interval, ranking
from amc_agents.training.score_file import scored_values, scoring_plan
from amc_agents.training.scoring import ScoringProgress, score, value_critic
from amc_agents.training.value.objective import returns_to_come
from amc_agents.types import FloatArray, Trajectory

LEAST_TASKS = 6
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
    if n_tasks < LEAST_TASKS or n_outcomes < 2:
        raise ConfigurationError(
            f"a calibration needs finished runs of at least {LEAST_TASKS} tasks and different outcomes, got {n_tasks} "
            f"tasks and {n_outcomes} outcomes: add runs or outcomes"
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
    """Yield `[n]` masks of the tested states, for at most five folds of whole tasks."""
    names, number = np.unique(tasks, return_inverse=True)
    n_folds = min(5, len(names))
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
