"""The parts of a value model's data: trained on, held out, kept for the calibration. No two share a task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.errors import ConfigurationError
from amc_agents.training.dataset import best_trajectories, iter_records
from amc_agents.training.value.calibrating import calibration_tasks
from amc_agents.training.value.data import TargetRow, held_out_tasks, shuffled_targets, target_rows
from amc_agents.training.value.rows import RowsSummary, ValueRows, build_rows
from amc_agents.training.value.settings import ValueTrainingSettings
from amc_agents.types import IntArray, Trajectory


@dataclass(frozen=True)
class RowSet:
    """Rows, and what can be said of them without reading them."""

    rows: Sequence[TargetRow]
    lengths: Sequence[int] | IntArray
    """`[n]` tokens of each row."""
    marks: Sequence[int] | IntArray
    """`[n]` marks of each row."""
    tasks: Sequence[str]
    """`[n]` the task that each row is of."""


@dataclass(frozen=True)
class ValueSets:
    """The data of one training."""

    training: RowSet
    held_out: RowSet
    """Stop the training early, and make the metrics."""
    calibration: RowSet | None
    """Where there is to be one."""
    examples: Sequence[Trajectory]
    """Some held-out trajectories, for the golden prompts."""
    summary: RowsSummary
    """Of all parts together."""
    policies: Sequence[str]
    """Who made the trajectories, where that is known."""


def sets_of_trajectories(
    trajectories: Sequence[Trajectory], encoder: Encoder, settings: ValueTrainingSettings
) -> ValueSets:
    """From trajectories in memory.

    Raises:
        ConfigurationError: a trajectory is not done, a part would have no task, or policies are chosen.
    """
    if settings.policies is not None:
        raise ConfigurationError(
            f"policies {', '.join(settings.policies)} cannot be chosen among trajectories, which do not say who made "
            "them: give the folder of a dataset"
        )
    if settings.best_of is not None:
        trajectories = best_trajectories(trajectories, settings.best_of)
    rng = np.random.default_rng(settings.seed)
    held_out, calibration = _held_out({one.task.id for one in trajectories}, settings, rng)

    def part(tasks: Collection[str], without: bool = False) -> tuple[list[Trajectory], list[TargetRow], list[str]]:
        chosen = [one for one in trajectories if (one.task.id in tasks) != without]
        rows = target_rows(chosen, encoder, settings.objective, success=settings.success)
        return chosen, rows, _tasks_of(chosen, rows)

    _, training, training_tasks = part({*held_out, *calibration}, without=True)
    if settings.shuffle_targets:
        training = shuffled_targets(training, rng)
    examples, looked_at, looked_at_tasks = part(held_out)
    sets = [_row_set(training, training_tasks), _row_set(looked_at, looked_at_tasks)]
    if calibration:
        sets.append(_row_set(*part(calibration)[1:]))
    summary = RowsSummary(
        len({one.task.id for one in trajectories}),
        len(trajectories),
        *(
            sum(found)
            for found in zip(*((len(one.rows), sum(one.marks), sum(one.lengths)) for one in sets), strict=True)
        ),
    )
    return ValueSets(sets[0], sets[1], sets[2] if calibration else None, examples, summary, ())


def build_dataset_rows(
    data: Path, cache: Path, encoder: Encoder, settings: ValueTrainingSettings, *, tokenizer: str
) -> ValueRows:
    """The rows of a dataset that may be larger than memory; errors as in `value_rows.build_rows`."""
    return build_rows(
        data, cache, encoder, settings.objective,
        tokenizer=tokenizer, success=settings.success, best_of=settings.best_of, policies=settings.policies,
    )  # fmt: skip


def sets_of_dataset(data: Path, rows: ValueRows, settings: ValueTrainingSettings) -> ValueSets:
    """From a dataset's rows on disk: the same parts as of its trajectories in memory.

    Raises:
        ConfigurationError: a part would have no task.
    """
    rng = np.random.default_rng(settings.seed)
    held_out, calibration = _held_out(rows.tasks, settings, rng)
    training = rows.of_tasks({*rows.tasks} - held_out - calibration)
    if settings.shuffle_targets:
        training = training.with_shuffled_targets(rng)
    examples = (
        record.trajectory
        for record in iter_records(data, best_of=settings.best_of, policies=settings.policies)
        if record.trajectory.task.id in held_out
    )
    return ValueSets(
        _on_disk(training),
        _on_disk(rows.of_tasks(held_out)),
        _on_disk(rows.of_tasks(calibration)) if calibration else None,
        list(islice(examples, _EXAMPLES)),
        rows.summary,
        rows.about["policies"],
    )


def _held_out(
    tasks: Collection[str], settings: ValueTrainingSettings, rng: np.random.Generator
) -> tuple[set[str], set[str]]:
    """Tasks for the metrics, and tasks for the calibration."""
    held_out = held_out_tasks(tasks, settings.validation_share, rng)
    if settings.calibration == "none":
        return held_out, set()
    calibration = set(calibration_tasks(held_out, settings.seed))
    return held_out - calibration, calibration


def _tasks_of(trajectories: Sequence[Trajectory], rows: Sequence[TargetRow]) -> list[str]:
    """The task of each row: the last row of a trajectory, and no other, holds its final state."""
    found, index = [], 0
    for row in rows:
        found.append(trajectories[index].task.id)
        index += row.final[-1]
    return found


def _row_set(rows: Sequence[TargetRow], tasks: Sequence[str]) -> RowSet:
    return RowSet(rows, [len(row.ids) for row in rows], [len(row.marks) for row in rows], tasks)


def _on_disk(rows: ValueRows) -> RowSet:
    return RowSet(rows, rows.lengths, rows.marks, rows.task_of_row)


_EXAMPLES = 64
"""Held-out trajectories that golden prompts are chosen among."""
