"""Split a value model's data into training, validation and calibration rows, without a common task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from amc_agents.training.splits import held_out_tasks
from amc_agents.training.value.calibrating import calibration_tasks
from amc_agents.training.value.row_building import selected_trajectories
from amc_agents.training.value.rows import RowsSummary, ValueRows
from amc_agents.training.value.settings import ValueTrainingSettings
from amc_agents.types import FloatArray, Trajectory


@dataclass(frozen=True)
class ValueSets:
    """The data of a training."""

    training: ValueRows
    held_out: ValueRows
    """For early stopping and for the metrics."""
    calibration: ValueRows | None
    """None without a calibration."""
    examples: Sequence[Trajectory]
    """Some held-out trajectories, for the golden prompts."""
    summary: RowsSummary
    """Of all parts together."""
    policies: Sequence[str]
    """Names of the policies that made the trajectories, if the data names them."""


def split_rows(data: Sequence[Trajectory] | str | Path, rows: ValueRows, settings: ValueTrainingSettings) -> ValueSets:
    """Split the rows of `data` by task.

    Raises:
        ConfigurationError: a part would have no task.
    """
    rng = np.random.default_rng(settings.seed)
    held_out = held_out_tasks(rows.tasks, settings.validation_share, rng)
    calibration = set() if settings.calibration == "none" else calibration_tasks(held_out, settings.seed)
    training = rows.of_tasks({*rows.tasks} - held_out)
    held_out -= calibration
    if settings.shuffle_targets:
        training = training.with_shuffled_targets(rng)
    records = selected_trajectories(data, best_of=settings.best_of, policies=settings.policies)
    examples = (record.trajectory for record in records if record.trajectory.task.id in held_out)
    return ValueSets(
        training,
        rows.of_tasks(held_out),
        rows.of_tasks(calibration) if calibration else None,
        list(islice(examples, _EXAMPLES)),
        rows.summary,
        rows.about["policies"],
    )


def held_out_values(
    data: Sequence[Trajectory] | str | Path,
    rows: ValueRows,
    values: Sequence[FloatArray],
    settings: ValueTrainingSettings,
) -> Iterator[tuple[Trajectory, FloatArray]]:
    """Yield the trajectories of some rows, each with the values `[T + 1]` of all its states.

    Args:
        data: the data of the training.
        rows: rows of some of its tasks.
        values: `[n]` arrays `[S]`, the values at the marks of each row.
        settings: of the training.
    """
    windows: dict[tuple[str, int], list[FloatArray]] = {}
    for trajectory, of_row in zip(rows.trajectory_of_row, values, strict=True):
        windows.setdefault(trajectory, []).append(np.asarray(of_row, dtype=np.float64))
    for record in selected_trajectories(data, best_of=settings.best_of, policies=settings.policies):
        parts = windows.get((record.trajectory.task.id, record.group), [])
        whole = np.concatenate(parts) if parts else np.zeros(0)
        # Another length: two policies have a trajectory of this task and group.
        if len(whole) == len(record.trajectory.steps) + 1:
            yield record.trajectory, whole


_EXAMPLES = 64
"""Held-out trajectories from which golden prompts are chosen."""
