"""Training rows on disk, read through memory maps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from typing_extensions import override

from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.objective import ExponentialWeights, Objective
from amc_agents.training.value.row_store import open_rows
from amc_agents.types import FloatArray, IntArray


class RowsSummary(NamedTuple):
    """The size of the training data."""

    tasks: int
    trajectories: int
    rows: int
    """Windows: one for each trajectory and each pending commit call, more for a trajectory longer than the context."""
    states: int
    tokens: int


class ValueRows(Sequence[TargetRow]):
    """Rows of a folder that `build_rows` wrote, in a given order.

    An instance holds a few numbers per row, and 8 bytes per state once targets are shuffled. Everything else is read
    from disk on access. It can be pickled: another process opens the same files.
    """

    def __init__(
        self, folder: str | Path, order: IntArray | None = None, *, weights: ExponentialWeights | None = None,
        shuffled: IntArray | None = None,
    ) -> None:  # fmt: skip
        """Open a folder of rows.

        Args:
            folder: what `build_rows` wrote.
            order: indices of the rows in the folder. None: all, ordered by task, group and window.
            weights: of the marks; None: of mean 1 over these rows, if the objective has weights.
            shuffled: `[marks in the folder]` index of the mark whose target each mark gets.
        """
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

    @override
    def __getitem__(self, index: int | slice) -> TargetRow | ValueRows:
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
        """The ids of all tasks of the rows, sorted."""
        return [self._stored.tasks[number] for number in np.unique(self._stored.rows["task"][self._order])]

    @property
    def task_of_row(self) -> list[str]:
        """`[n]` the id of each row's task."""
        return [self._stored.tasks[number] for number in self._stored.rows["task"][self._order]]

    @property
    def trajectory_of_row(self) -> list[tuple[str, int]]:
        """`[n]` (task, group) of the trajectory that each row is a window of."""
        groups = self._stored.rows["group"][self._order].tolist()
        return list(zip(self.task_of_row, groups, strict=True))

    @property
    def about(self) -> dict[str, Any]:
        """What the folder was made from: `data_hash`, `policies`, `objective`, `selection`, ..."""
        return dict(self._stored.about)

    @property
    def summary(self) -> RowsSummary:
        """The number of tasks, trajectories, rows, states and tokens."""
        first = self._stored.rows["window"][self._order] == 0
        return RowsSummary(len(self.tasks), int(first.sum()), len(self), int(self.marks.sum()), int(self.lengths.sum()))

    def of_tasks(self, tasks: Collection[str]) -> ValueRows:
        """Select the rows of some tasks. Weights get mean 1 over them."""
        chosen = np.array([task in tasks for task in self._stored.tasks])
        selected = chosen[self._stored.rows["task"][self._order]]
        return ValueRows(self.folder, self._order[selected], shuffled=self._shuffled)

    def with_shuffled_targets(self, rng: np.random.Generator) -> ValueRows:
        """Permute targets, and the weights that follow from them, among states of the same number: the control.

        A model can then learn only how the return depends on the step; a critic that is better than this control has
        read the states. Final states are permuted with all others. If they kept their targets, a model could learn
        what success looks like from trajectories that end early, and recognise states close to it.
        """
        places = np.concatenate([self._places(index) for index in range(len(self))])
        shuffled = np.arange(len(self._stored.marks))
        states = self._stored.marks["state"][places]
        for number in np.unique(states):
            same_number = places[states == number]
            shuffled[same_number] = same_number[rng.permutation(len(same_number))]
        return ValueRows(self.folder, self._order, weights=self._weights, shuffled=shuffled)

    def _places(self, index: int) -> IntArray:
        """Return the indices of a row's marks in the folder."""
        row = self._stored.rows[self._order[index]]
        return np.arange(row["marks"], row["marks_end"])

    def _targets(self, places: IntArray) -> FloatArray:
        return np.asarray(self._stored.marks["target"][places if self._shuffled is None else self._shuffled[places]])

    def _weights_of_all(self) -> ExponentialWeights | None:
        if self.objective.beta is None:
            return None
        weights = ExponentialWeights(self.objective.beta)
        for start in range(0, len(self), _ROWS_AT_ONCE):
            places = [self._places(index) for index in range(start, min(start + _ROWS_AT_ONCE, len(self)))]
            weights.add(self._targets(np.concatenate(places)))
        return weights


def _reopened(
    folder: Path, order: IntArray, weights: ExponentialWeights | None, shuffled: IntArray | None
) -> ValueRows:
    return ValueRows(folder, order, weights=weights, shuffled=shuffled)


_ROWS_AT_ONCE = 1024
"""Rows whose targets are in memory at the same time."""
