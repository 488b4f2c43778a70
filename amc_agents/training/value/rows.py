"""Training rows on disk: a folder of flat arrays that are read through memory maps.

ids.bin     [tokens] int32, the token ids of all rows, concatenated
marks.bin   [marks]  MARK, the scored states of all rows, concatenated
rows.bin    [rows]   ROW, the place of each row in the other two files
tasks.json  the ids of the tasks, sorted; a row names its task by the index in this list
rows.json   what the rows were made from; written last
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from amc_agents.errors import CheckpointError
from amc_agents.training.settings import Objective
from amc_agents.training.value.targets import ExponentialWeights
from amc_agents.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A window of a trajectory as token ids, with a target at every mark: one row of a batch."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """`[S]` index in `ids` at which each of its states is scored."""
    states: tuple[int, ...]
    """`[S]` number t of each state."""
    targets: tuple[float, ...]
    """`[S]` target of each score."""
    final: tuple[bool, ...]
    """`[S]` whether the state is the end of its trajectory, with no return to come."""
    success: bool
    """Whether the whole return of the trajectory counts as a success."""
    weights: tuple[float, ...]
    """`[S]` weight of each mark in the loss; 1.0 for objectives without weights."""


VERSION = 2
"""Version of the layout."""

TOKEN = np.dtype("<i4")
MARK = np.dtype(
    [
        ("column", "<i4"),  # index in the row at which the state is scored
        ("state", "<i4"),  # number t of the state
        ("target", "<f8"),
        ("final", "?"),
        ("key", "<u8", 2),  # fingerprint of the state; 0 if the objective does not need it
    ]
)
ROW = np.dtype(
    [
        ("tokens", "<i8"),  # first token
        ("tokens_end", "<i8"),
        ("marks", "<i8"),  # first mark
        ("marks_end", "<i8"),
        ("task", "<i8"),
        ("group", "<i8"),
        ("window", "<i4"),  # number of the row within its trajectory
        ("success", "?"),
    ]
)

StructArray = npt.NDArray[np.void]


class StoredRows(NamedTuple):
    """The contents of a folder; the arrays are memory maps."""

    ids: npt.NDArray[np.int32]
    marks: StructArray
    rows: StructArray
    tasks: list[str]
    about: dict[str, Any]


class RowWriter:
    """Append rows to the files of a folder. Only a table of task names stays in memory."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._folder = folder
        self._ids, self._marks, self._rows = (
            files.enter_context((folder / name).open("wb")) for name in ("ids.bin", "marks.bin", "rows.bin")
        )
        self.n_tokens = self.n_marks = self.n_rows = 0
        self._tasks: dict[str, int] = {}

    def add(self, ids: Sequence[int], marks: StructArray, *, task: str, group: int, window: int, success: bool) -> None:
        """Append a row: its token ids and its `[S]` marks."""
        number = self._tasks.setdefault(task, len(self._tasks))
        tokens_end, marks_end = self.n_tokens + len(ids), self.n_marks + len(marks)
        row = (self.n_tokens, tokens_end, self.n_marks, marks_end, number, group, window, success)
        self._ids.write(np.asarray(ids, TOKEN).tobytes())
        self._marks.write(marks.tobytes())
        self._rows.write(np.array(row, ROW).tobytes())
        self.n_tokens, self.n_marks, self.n_rows = tokens_end, marks_end, self.n_rows + 1

    def finish(self) -> None:
        """Sort the tasks and renumber them in the rows. Call once, after the last row."""
        for file in (self._ids, self._marks, self._rows):
            file.flush()
        names = sorted(self._tasks)
        place = {name: index for index, name in enumerate(names)}
        renumbered = np.array([place[name] for name in self._tasks], np.int64)
        rows = open_array(self._folder, "rows.bin", ROW, mode="r+")
        rows["task"] = renumbered[rows["task"]]
        (self._folder / "tasks.json").write_text(json.dumps(names))


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write to. It is renamed to `target` when the block succeeds, and removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        try:
            os.replace(part, target)
        except OSError:
            # Another process may have been faster; its rows have the same fingerprint.
            if not (target / "rows.json").is_file():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def describe(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what the rows were made from."""
    (folder / "rows.json").write_text(json.dumps({"version": VERSION, **about}, indent=1))


def open_array(folder: Path, name: str, dtype: np.dtype[Any], *, mode: Any = "r") -> npt.NDArray[Any]:
    """Open a file of a folder as a memory map."""
    return np.memmap(folder / name, dtype, mode)


def open_rows(folder: Path) -> StoredRows:
    """Open all files of a folder.

    Raises:
        CheckpointError: a file is missing or damaged, or the layout has another version.
    """
    try:
        about = json.loads((folder / "rows.json").read_text())
        tasks = json.loads((folder / "tasks.json").read_text())
        if about["version"] != VERSION:
            raise CheckpointError(f"{folder} holds rows of layout {about['version']}, expected {VERSION}: remove it")
        ids = open_array(folder, "ids.bin", TOKEN)
        marks, rows = open_array(folder, "marks.bin", MARK), open_array(folder, "rows.bin", ROW)
        expected = (about["tokens"], about["states"], about["rows"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} does not hold training rows ({error}): remove it") from error
    if (len(ids), len(marks), len(rows)) != expected:
        raise CheckpointError(f"{folder} does not hold the training rows that its rows.json describes: remove it")
    return StoredRows(ids, marks, rows, tasks, about)


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
