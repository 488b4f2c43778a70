"""Training rows of a dataset larger than memory: built shard by shard, kept on disk, read through memory maps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.errors import CheckpointError
from amc_agents.training.dataset import LoggedTrajectory, dataset_hash, records_at, selected
from amc_agents.training.value.data import TargetRow, held_out_tasks, shuffled_places
from amc_agents.training.value.objective import ExponentialWeights, Objective, soft_returns, state_keys, state_returns
from amc_agents.training.value.row_store import (
    MARK,
    ROW,
    RowWriter,
    describe,
    open_array,
    open_rows,
    whole_or_nothing,
)
from amc_agents.types import FloatArray, IntArray


class RowsSummary(NamedTuple):
    """How much there is to train on."""

    tasks: int
    trajectories: int
    rows: int
    """Windows: one a trajectory, more where it outgrows the context."""
    states: int
    tokens: int


class ValueRows(Sequence[TargetRow]):
    """The rows of a folder that `build_rows` wrote, or some of them; ordered by task, group and window.

    It holds a few numbers a row, and 8 bytes a state once targets are shuffled; the rest is read from disk where it is
    asked for. It can be sent to other processes, which open the same files.
    """

    def __init__(
        self, folder: str | Path, order: IntArray | None = None, *, weights: ExponentialWeights | None = None,
        shuffled: IntArray | None = None,
    ) -> None:  # fmt: skip
        self.folder = Path(folder)
        self._stored = open_rows(self.folder)
        self.objective = Objective(**self._stored.about["objective"])
        rows = self._stored.rows
        self._order = np.lexsort((rows["window"], rows["group"], rows["task"])) if order is None else order
        self._shuffled = shuffled
        self._weights = weights
        if weights is None and self.objective.loss == "weighted":
            self._weights = self._weights_of_all()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.folder, self._order, self._weights, self._shuffled)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> TargetRow: ...
    @overload
    def __getitem__(self, index: slice) -> ValueRows: ...

    def __getitem__(self, index: int | slice) -> TargetRow | ValueRows:
        """One row; or some of them, with the weights that they have here."""
        if isinstance(index, slice):
            return ValueRows(self.folder, self._order[index], weights=self._weights, shuffled=self._shuffled)
        row = self._stored.rows[self._order[index]]
        marks = self._stored.marks[row["marks"] : row["marks_end"]]
        targets = self._targets(self._places(index))
        return TargetRow(
            ids=tuple(self._stored.ids[row["tokens"] : row["tokens_end"]].tolist()),
            marks=tuple(marks["column"].tolist()),
            states=tuple(marks["state"].tolist()),
            targets=tuple(targets.tolist()),
            final=tuple(marks["final"].tolist()),
            success=bool(row["success"]),
            rewards=tuple(marks["reward"].tolist()),
            weights=(1.0,) * len(targets) if self._weights is None else tuple(self._weights.of(targets).tolist()),
        )

    @property
    def lengths(self) -> IntArray:
        """`[n]` tokens of each row."""
        rows = self._stored.rows
        return np.asarray((rows["tokens_end"] - rows["tokens"])[self._order])

    @property
    def marks(self) -> IntArray:
        """`[n]` scored states of each row."""
        rows = self._stored.rows
        return np.asarray((rows["marks_end"] - rows["marks"])[self._order])

    @property
    def tasks(self) -> list[str]:
        """The ids of the tasks that the rows are of, sorted."""
        return [self._stored.tasks[number] for number in np.unique(self._stored.rows["task"][self._order])]

    @property
    def task_of_row(self) -> list[str]:
        """`[n]` the id of the task that each row is of."""
        return [self._stored.tasks[number] for number in self._stored.rows["task"][self._order]]

    def of_tasks(self, tasks: Collection[str]) -> ValueRows:
        """The rows of some tasks; weights are of mean 1 over them."""
        chosen = np.array([task in tasks for task in self._stored.tasks])
        here = chosen[self._stored.rows["task"][self._order]]
        return ValueRows(self.folder, self._order[here], shuffled=self._shuffled)

    @property
    def about(self) -> dict[str, Any]:
        """What the whole folder was made from: `data_hash`, `policies`, `objective`, `selection`, ..."""
        return dict(self._stored.about)

    @property
    def summary(self) -> RowsSummary:
        """How many tasks, trajectories, ..."""
        first = self._stored.rows["window"][self._order] == 0
        return RowsSummary(len(self.tasks), int(first.sum()), len(self), int(self.marks.sum()), int(self.lengths.sum()))

    def split_by_task(self, validation_share: float, rng: np.random.Generator) -> tuple[ValueRows, ValueRows]:
        """Rows for training and for validation, as `value_data.split_by_task` splits trajectories.

        Weights are of mean 1 over each part.

        Raises:
            ConfigurationError: no task would be left on one side.
        """
        tasks = self.tasks
        held_out = held_out_tasks(tasks, validation_share, rng)
        return self.of_tasks(set(tasks) - held_out), self.of_tasks(held_out)

    def with_shuffled_targets(self, rng: np.random.Generator) -> ValueRows:
        """The control, as `value_data.shuffled_targets`: the same for the same rows and generator."""
        places = np.concatenate([self._places(index) for index in range(len(self))])
        marks = self._stored.marks
        source = places[shuffled_places(marks["state"][places].astype(np.int64), rng)]
        shuffled = np.arange(len(marks))
        shuffled[places] = source
        return ValueRows(self.folder, self._order, weights=self._weights, shuffled=shuffled)

    def _places(self, index: int) -> IntArray:
        row = self._stored.rows[self._order[index]]
        return np.arange(row["marks"], row["marks_end"])

    def _targets(self, places: IntArray) -> FloatArray:
        return np.asarray(self._stored.marks["target"][places if self._shuffled is None else self._shuffled[places]])

    def _weights_of_all(self) -> ExponentialWeights | None:
        if self.objective.beta is None:
            return None
        found = ExponentialWeights(self.objective.beta)
        for start in range(0, len(self), _AT_ONCE):
            places = [self._places(index) for index in range(start, min(start + _AT_ONCE, len(self)))]
            found.add(self._targets(np.concatenate(places)))
        return found


def build_rows(
    data: str | Path,
    cache: str | Path,
    encoder: Encoder,
    objective: Objective | None = None,
    *,
    tokenizer: str,
    success: float = 1.0,
    best_of: int | None = None,
    policies: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValueRows:
    """The rows of a dataset: built now, or found from before.

    Memory does not grow with the dataset's text: one trajectory at a time is rendered and written. What grows is the
    table of task names, a byte a trajectory, and for eq. 5 the states of one task.

    Args:
        data: the dataset's folder.
        cache: a folder for folders of rows, one for each combination of what they depend on; its contents may be
            removed at any time, and nothing half-written is ever found in it under a row folder's name.
        encoder: renders and tokenizes.
        objective: what is learnt; None: eq. 7.
        tokenizer: a fingerprint of what the encoder tokenizes with (`tokenizer_hash`).
        success: the least whole return that counts as a success (for the metrics alone).
        best_of: as in `dataset.iter_records`.
        policies: as in `dataset.iter_records`.
        progress: called now and then with the number of trajectories written, and of all.

    Raises:
        CheckpointError: the dataset, or a folder of rows, cannot be read.
        ConfigurationError: a trajectory is not done or its returns do not suit the objective; `best_of` with eq. 5.
    """
    objective = objective or Objective()
    objective.check_best_of(best_of)
    selection = {"best_of": best_of, "policies": None if policies is None else sorted(set(policies))}
    about = {
        "data_hash": dataset_hash(data),
        "selection": selection,
        "objective": asdict(objective),
        "format": encoder.format.to_json(),
        "max_tokens": encoder.max_tokens,
        "prefix_ids": list(encoder.prefix_ids),
        "tokenizer": tokenizer,
        # Rows from before this rule may hold role tokens that a text spelled out.
        "special_tokens": "template",
        "success": success,
    }
    fingerprint = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    target = Path(cache) / f"rows-{fingerprint[:16]}"
    if not target.exists():
        chosen = selected(data, best_of=best_of, policies=policies)
        records = records_at(chosen)
        if progress is not None:
            records = _told(records, sum(map(sum, chosen.values())), progress)
        with whole_or_nothing(target) as folder:
            describe(folder, about | _write(folder, records, encoder, objective, success))
    return ValueRows(target)


def tokenizer_hash(tokenizer: Any) -> str:
    """A fingerprint of a transformers tokenizer: of all its rules if it is a fast one, of its vocabulary otherwise."""
    rules = getattr(tokenizer, "backend_tokenizer", None)
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if rules is None else rules.to_str()
    return hashlib.sha256(f"{type(tokenizer).__name__} {text}".encode()).hexdigest()


def _told(
    records: Iterator[LoggedTrajectory], total: int, progress: Callable[[int, int], None]
) -> Iterator[LoggedTrajectory]:
    for number, record in enumerate(records, start=1):
        yield record
        if number % _AT_ONCE == 0 or number == total:
            progress(number, total)


def _write(
    folder: Path, records: Iterable[LoggedTrajectory], encoder: Encoder, objective: Objective, success: float
) -> dict[str, Any]:
    policies: set[str] = set()
    written = 0
    with ExitStack() as files:
        writer = RowWriter(folder, files)
        for record in records:
            _write_one(writer, record, encoder, objective, success)
            policies.add(record.policy)
            written += 1
        if not written:
            raise CheckpointError("the dataset has no trajectory: collect some first")
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


def _write_one(
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
    for window, row in enumerate(encoder.rows(trajectory)):
        marks = states[list(row.states)]
        marks["column"] = row.marks
        writer.add(
            row.ids, marks, task=trajectory.task.id, group=record.group, window=window,
            success=trajectory.return_ >= success,
        )  # fmt: skip


def _soften(folder: Path, beta: float) -> None:
    # States are shared within a task only, so a few tasks at a time are enough.
    rows = open_array(folder, "rows.bin", ROW)
    marks = open_array(folder, "marks.bin", MARK, mode="r+")
    order = np.argsort(rows["task"], kind="stable")
    for part in _whole_tasks(rows["task"][order], (rows["marks_end"] - rows["marks"])[order]):
        places = np.concatenate([np.arange(row["marks"], row["marks_end"]) for row in rows[order[part]]])
        marks["target"][places] = soft_returns(marks["key"][places], marks["target"][places], beta)


def _whole_tasks(tasks: IntArray, n_states: IntArray) -> Iterator[slice]:
    # Stretches of rows, ordered by task, that end where a task does.
    ends = np.r_[np.flatnonzero(tasks[1:] != tasks[:-1]) + 1, len(tasks)]
    start = states = done = 0
    for end in ends.tolist():
        states += int(n_states[done:end].sum())
        done = end
        if states >= _STATES_AT_ONCE or end == len(tasks):
            yield slice(start, end)
            start, states = end, 0


def _reopened(
    folder: Path, order: IntArray, weights: ExponentialWeights | None, shuffled: IntArray | None
) -> ValueRows:
    return ValueRows(folder, order, weights=weights, shuffled=shuffled)


_AT_ONCE = 1024
"""Rows whose states are looked at together, and trajectories between two reports."""
_STATES_AT_ONCE = 1 << 18
"""States that eq. 5 groups together, and those of one task more."""
