"""Build training rows, and split them: render and tokenize trajectories, compute their targets, store both on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.render import Encoder, Row
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.messages import pending_states
from amc_agents.training.critic_calibration import calibration_tasks
from amc_agents.training.data_checks import NO_OUTCOME, held_out_tasks
from amc_agents.training.dataset import LoggedTrajectory, best_trajectories, data_hash, dataset_hash, iter_records
from amc_agents.training.settings import Objective, ValueTrainingSettings
from amc_agents.training.value.rows import (
    MARK,
    ROW,
    RowsSummary,
    RowWriter,
    StructArray,
    ValueRows,
    atomic_folder,
    describe,
    open_array,
)
from amc_agents.training.value.targets import soft_returns, state_keys, state_returns
from amc_agents.types import FloatArray, IntArray, Trajectory


def build_rows(
    data: Sequence[Trajectory] | str | Path,
    cache: str | Path,
    encoder: Encoder,
    objective: Objective | None = None,
    *,
    tokenizer: str,
    success: float = 1.0,
    best_of: int | None = None,
    policies: Sequence[str] | None = None,
) -> ValueRows:
    """Build the rows of a dataset or of trajectories, or open those that were built before.

    A trajectory has a row, or several if it is longer than the context, and another row for each state in which a call
    of a commit tool was pending (`LoggedTrajectory.commit_tools`): at run time, particles are weighed in such states.

    One trajectory at a time is rendered and written, so that memory does not grow with the text of a dataset. It grows
    with the table of task names, by a byte per trajectory, and for eq. 5 by the states of one task.

    Args:
        data: finished trajectories, whose order is kept; or the folder of a dataset, whose rows are ordered by task,
            group and window.
        cache: folder for row folders, one per combination of everything that the rows depend on. Its contents may be
            removed at any time; a row folder in it is always complete.
        encoder: renders and tokenizes.
        objective: determines the targets; None: eq. 7.
        tokenizer: fingerprint of the encoder's tokenizer (`tokenizer_hash`).
        success: the least whole return that counts as a success (for the metrics only).
        best_of: as in `dataset.iter_records`.
        policies: as in `dataset.iter_records`; for a dataset only.

    Raises:
        CheckpointError: the dataset or the stored rows cannot be read.
        ConfigurationError: a trajectory is not done or its returns do not suit the objective; `best_of` with eq. 5; or
            `policies` with trajectories.
    """
    objective = objective or Objective()
    objective.check_best_of(best_of)
    about = {
        "data_hash": dataset_hash(data) if isinstance(data, str | Path) else data_hash(data),
        "selection": {"best_of": best_of, "policies": None if policies is None else sorted(set(policies))},
        "objective": asdict(objective),
        "format": encoder.format.to_json(),
        "max_tokens": encoder.max_tokens,
        "prefix_ids": list(encoder.prefix_ids),
        "tokenizer": tokenizer,
        # Rows built before this rule may contain role tokens that a text spelled out.
        "special_tokens": "template",
        "success": success,
    }
    fingerprint = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    folder = Path(cache) / f"rows-{fingerprint[:16]}"
    if not folder.exists():
        records = selected_trajectories(data, best_of=best_of, policies=policies)
        with atomic_folder(folder) as part:
            describe(part, about | _write(part, records, encoder, objective, success))
    rows = ValueRows(folder)
    return rows if isinstance(data, str | Path) else ValueRows(folder, np.arange(len(rows)))


def selected_trajectories(
    data: Sequence[Trajectory] | str | Path, *, best_of: int | None, policies: Sequence[str] | None
) -> Iterator[LoggedTrajectory]:
    """Iterate over the trajectories that a training uses. Arguments and errors as in `build_rows`."""
    if isinstance(data, str | Path):
        return iter_records(data, best_of=best_of, policies=policies, known_outcomes=True)
    if policies is not None:
        raise ConfigurationError(
            f"policies {', '.join(policies)} cannot be selected from trajectories, which do not name their policy: "
            "give the folder of a dataset"
        )
    chosen = data if best_of is None else best_trajectories(data, best_of)
    return (LoggedTrajectory(trajectory, group) for group, trajectory in enumerate(chosen))


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a fingerprint of a transformers tokenizer: of all rules of a fast one, of the vocabulary otherwise."""
    rules = getattr(tokenizer, "backend_tokenizer", None)
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if rules is None else rules.to_str()
    return hashlib.sha256(f"{type(tokenizer).__name__} {text}".encode()).hexdigest()


def _write(
    folder: Path, records: Iterable[LoggedTrajectory], encoder: Encoder, objective: Objective, success: float
) -> dict[str, Any]:
    policies: set[str] = set()
    written = 0
    with ExitStack() as files:
        writer = RowWriter(folder, files)
        for record in records:
            _write_trajectory(writer, record, encoder, objective, success)
            policies.add(record.policy)
            written += 1
        if not written:
            raise CheckpointError(NO_OUTCOME)
        writer.finish()
    if objective.soft and objective.beta is not None:
        _soften(folder, objective.beta)
    return {
        "policies": sorted(policies - {""}),
        "trajectories": written,
        "rows": writer.n_rows,
        "states": writer.n_marks,
        "tokens": writer.n_tokens,
    }


def _write_trajectory(
    writer: RowWriter, record: LoggedTrajectory, encoder: Encoder, objective: Objective, success: float
) -> None:
    trajectory = record.trajectory
    states = np.zeros(len(trajectory.steps) + 1, MARK)
    states["state"] = np.arange(len(states))
    states["target"] = state_returns(trajectory, objective)
    states["final"][-1] = True
    if objective.soft:
        states["key"] = state_keys(trajectory)
    whole = [(row, states[list(row.states)]) for row in encoder.rows(trajectory)]
    pending = _pending_rows(record, states, encoder, objective)
    for window, (row, marks) in enumerate([*whole, *pending]):
        marks["column"] = row.marks[len(row.marks) - len(marks) :]
        writer.add(
            row.ids, marks, task=trajectory.task.id, group=record.group, window=window,
            success=trajectory.return_ >= success,
        )  # fmt: skip


def _pending_rows(
    record: LoggedTrajectory, states: StructArray, encoder: Encoder, objective: Objective
) -> Iterator[tuple[Row, StructArray]]:
    """Yield the row of each state in which a commit call was pending, with its only mark.

    The call has earned nothing yet, so its target is that of the state before the agent's message.
    """
    commits = record.commit_tools
    for state in pending_states(record.trajectory, commits) if commits else ():
        number = len(state.steps)
        mark = states[number - 1 : number].copy()
        mark["state"] = number
        if objective.soft:
            mark["key"] = state_keys(state)[-1]
        yield encoder.rows(state)[-1], mark


def _soften(folder: Path, beta: float) -> None:
    """Replace the targets by those of eq. 5, a few tasks at a time: only trajectories of a task share states."""
    rows = open_array(folder, "rows.bin", ROW)
    marks = open_array(folder, "marks.bin", MARK, mode="r+")
    order = np.argsort(rows["task"], kind="stable")
    for part in _whole_tasks(rows["task"][order], (rows["marks_end"] - rows["marks"])[order]):
        places = np.concatenate([np.arange(row["marks"], row["marks_end"]) for row in rows[order[part]]])
        marks["target"][places] = soft_returns(marks["key"][places], marks["target"][places], beta)


def _whole_tasks(tasks: IntArray, n_states: IntArray) -> Iterator[slice]:
    """Cut rows, ordered by task, into stretches of whole tasks."""
    ends = np.r_[np.flatnonzero(tasks[1:] != tasks[:-1]) + 1, len(tasks)]
    start = states = done = 0
    for end in ends.tolist():
        states += int(n_states[done:end].sum())
        done = end
        if states >= _STATES_AT_ONCE or end == len(tasks):
            yield slice(start, end)
            start, states = end, 0


_STATES_AT_ONCE = 1 << 18
"""States from which on eq. 5 starts another stretch of tasks."""


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
