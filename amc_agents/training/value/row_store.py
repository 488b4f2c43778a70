"""Training rows on disk: three flat arrays and a description, read through memory maps.

ids.bin     [tokens] int32, all rows' token ids, one row after the other
marks.bin   [marks]  MARK, all rows' scored states
rows.bin    [rows]   ROW, where each row lies in the two
rows.json   what the rows were made from; written last
tasks.json  the tasks' ids, sorted; a row names its task by the place in it
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
"""Of the layout."""

TOKEN = np.dtype("<i4")
MARK = np.dtype(
    [
        ("column", "<i4"),  # place in the row where the state is scored
        ("state", "<i4"),  # number t of the state
        ("target", "<f8"),
        ("reward", "<f8"),  # of the step that leaves the state
        ("final", "?"),
        ("key", "<u8", 2),  # fingerprint of the state; 0 where the objective needs none
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
        ("window", "<i4"),  # number of the row among those of its trajectory
        ("success", "?"),
    ]
)

StructArray = npt.NDArray[np.void]


class Stored(NamedTuple):
    """What a folder holds; the arrays are memory maps."""

    ids: npt.NDArray[np.int32]
    marks: StructArray
    rows: StructArray
    tasks: list[str]
    about: dict[str, Any]


class RowWriter:
    """Appends rows to the files of a folder; what stays in memory is a table of task names."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._folder = folder
        self._ids, self._marks, self._rows = (
            files.enter_context((folder / name).open("wb")) for name in ("ids.bin", "marks.bin", "rows.bin")
        )
        self.n_tokens = self.n_marks = self.n_rows = 0
        self._tasks: dict[str, int] = {}

    def add(self, ids: Sequence[int], marks: StructArray, *, task: str, group: int, window: int, success: bool) -> None:
        """One row: its token ids and its `[S]` marks."""
        number = self._tasks.setdefault(task, len(self._tasks))
        tokens_end, marks_end = self.n_tokens + len(ids), self.n_marks + len(marks)
        row = (self.n_tokens, tokens_end, self.n_marks, marks_end, number, group, window, success)
        self._ids.write(np.asarray(ids, TOKEN).tobytes())
        self._marks.write(marks.tobytes())
        self._rows.write(np.array(row, ROW).tobytes())
        self.n_tokens, self.n_marks, self.n_rows = tokens_end, marks_end, self.n_rows + 1

    def finish(self) -> None:
        """Puts the tasks in order and the rows' numbers of them with it. To be called once, after the last row."""
        for file in (self._ids, self._marks, self._rows):
            file.flush()
        names = sorted(self._tasks)
        place = {name: index for index, name in enumerate(names)}
        renumbered = np.array([place[name] for name in self._tasks], np.int64)
        rows = open_array(self._folder, "rows.bin", ROW, mode="r+")
        rows["task"] = renumbered[rows["task"]]
        (self._folder / "tasks.json").write_text(json.dumps(names))


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """A folder to write to that takes the name `target` once the block has ended well, and is gone otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        try:
            os.replace(part, target)
        except OSError:
            # Another process was faster; what it wrote has the same fingerprint.
            if not (target / "rows.json").is_file():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def describe(folder: Path, about: Mapping[str, Any]) -> None:
    """Writes what the rows were made from."""
    (folder / "rows.json").write_text(json.dumps({"version": VERSION, **about}, indent=1))


def open_array(folder: Path, name: str, dtype: np.dtype[Any], *, mode: Any = "r") -> npt.NDArray[Any]:
    """A file of a folder as a memory map."""
    return np.memmap(folder / name, dtype, mode)


def open_rows(folder: Path) -> Stored:
    """Everything in a folder.

    Raises:
        CheckpointError: a file is missing or damaged, or the layout is another version's.
    """
    try:
        about = json.loads((folder / "rows.json").read_text())
        tasks = json.loads((folder / "tasks.json").read_text())
        if about["version"] != VERSION:
            raise CheckpointError(f"{folder} holds rows of layout {about['version']}, expected {VERSION}: remove it")
        found = Stored(
            open_array(folder, "ids.bin", TOKEN),
            open_array(folder, "marks.bin", MARK),
            open_array(folder, "rows.bin", ROW),
            tasks,
            about,
        )
        expected = (about["tokens"], about["states"], about["rows"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} does not hold training rows ({error}): remove it") from error
    if (len(found.ids), len(found.marks), len(found.rows)) != expected:
        raise CheckpointError(f"{folder} does not hold the training rows that rows.json tells of: remove it")
    return found
