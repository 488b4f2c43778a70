"""Build training rows: render and tokenize trajectories, compute their targets, and store both on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.render import Encoder, Row
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.messages import pending_states
from amc_agents.training.data_checks import NO_OUTCOME
from amc_agents.training.dataset import LoggedTrajectory, best_trajectories, data_hash, dataset_hash, iter_records
from amc_agents.training.value.objective import Objective, soft_returns, state_keys, state_returns
from amc_agents.training.value.row_store import (
    MARK,
    ROW,
    RowWriter,
    StructArray,
    atomic_folder,
    describe,
    open_array,
)
from amc_agents.training.value.rows import ValueRows
from amc_agents.types import IntArray, Trajectory


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
    states["reward"][:-1] = [step.reward for step in trajectory.steps]
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
    for state in pending_states(record.trajectory, record.commit_tools):
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
