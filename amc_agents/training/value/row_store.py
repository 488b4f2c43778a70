"""Store training rows in a folder of flat arrays that are read through memory maps.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.errors import CheckpointError

VERSION = 1
"""Version of the layout."""

TOKEN = np.dtype("<i4")
MARK = np.dtype(
    [
        ("column", "<i4"),  # index in the row at which the state is scored
        ("state", "<i4"),  # number t of the state
        ("target", "<f8"),
        ("reward", "<f8"),  # of the step that leaves the state
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
