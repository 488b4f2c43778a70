"""The trajectories of a comparison's runs: `trajectories*.jsonl` in the results folder, one run a line.

`write_dataset` makes a dataset of them, which `amc score` and `amc train` read as they read that of `amc collect`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from amc_agents.bench.records import RunResult
from amc_agents.bench.results_folder import TRAJECTORIES, read_lines
from amc_agents.bench.scores import scored_trajectories
from amc_agents.bench.work import ItemKey
from amc_agents.files import JsonLinesFile
from amc_agents.run import Run
from amc_agents.training.dataset import LoggedTrajectory, from_row, replace_dataset, to_row

DATASET = "trajectories"
"""The dataset's folder in a results folder."""


@dataclass(frozen=True)
class RunTrajectories:
    """The trajectories of one run: one line of a file."""

    method: str
    task: str
    seed: int
    rows: tuple[Mapping[str, Any], ...]
    """Rows of `amc_agents.training.dataset`, in the order of the run's final population."""

    @property
    def key(self) -> ItemKey:
        """The key of the run's work item."""
        return self.method, self.task, self.seed

    @classmethod
    def of(cls, result: RunResult, run: Run) -> RunTrajectories:
        """Return the trajectories behind a result. Failed particles are left out, as in its scores."""
        origin = json.dumps({"prompt": result.prompt, "seed": result.seed}, sort_keys=True)
        rows = [
            to_row(LoggedTrajectory(trajectory, group, result.method, run.seed, origin))
            for group, trajectory in enumerate(scored_trajectories(run))
        ]
        return cls(*result.key, tuple(rows))

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunTrajectories:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        return cls(**{**values, "rows": tuple(values["rows"])})


class TrajectoriesFile:
    """The file in which one process stores the trajectories of its runs. A context manager.

    Args:
        folder: the results folder.
        worker: names this process's file in a folder that several share.
    """

    def __init__(self, folder: str | Path, worker: str = "") -> None:
        self._file = JsonLinesFile(Path(folder) / f"trajectories{worker and '-'}{worker}.jsonl")

    def __enter__(self) -> TrajectoriesFile:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.__exit__(kind, error, at)

    def add(self, run: RunTrajectories) -> None:
        """Append the trajectories of a run. The operating system has the whole line when this returns."""
        self._file.append(run.to_json())


def write_dataset(folder: str | Path, keys: Sequence[ItemKey]) -> Path | None:
    """Write the trajectories of some runs as a dataset, atomically; None if none are stored.

    Args:
        folder: the results folder.
        keys: the runs, in the order of the dataset. Groups are counted over all runs of a task, so that they differ.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
        MissingExtra: pyarrow is not installed.
    """
    runs = {run.key: run for run in _stored(Path(folder))}
    groups: dict[tuple[str, str], int] = {}
    records = []
    for row in (row for key in keys if key in runs for row in runs[key].rows):
        group = groups.get((row["task_id"], row["policy"]), 0)
        groups[row["task_id"], row["policy"]] = group + 1
        records.append(replace(from_row(row), group=group))
    return replace_dataset(Path(folder) / DATASET, records) if records else None


def hash_of_input(given: Mapping[str, Any]) -> str:
    """Return a hash of an agent's input: the same for equal prompts in every process."""
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Convert a message, or another object of an agent's input, to JSON. A random message id is not a prompt."""
    return value.model_dump(exclude={"id"}) if hasattr(value, "model_dump") else str(value)


def _stored(folder: Path) -> Iterator[RunTrajectories]:
    for file in sorted(folder.glob(TRAJECTORIES)):
        yield from read_lines(file, RunTrajectories.from_json, "a run's trajectories")
