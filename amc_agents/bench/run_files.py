"""What a comparison stores of its runs beside their results: failures, decisions and trajectories, one run a line.

`failures*.jsonl`: a failed run has no result, so that it is neither a 0 nor dropped: reports count it, and a resumed
comparison runs it again. `decisions*.jsonl`: `amc_agents.bench.decision_report` evaluates them. `trajectories*.jsonl`:
`write_dataset` makes a dataset of them, which `amc score` and `amc train` read as they read that of `amc collect`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from amc_agents.bench.records import RunResult, scored_trajectories
from amc_agents.bench.results_folder import DECISIONS, FAILURES, TRAJECTORIES, ItemKey, WorkItem, read_lines
from amc_agents.errors import (
    AgentContractError,
    AmcError,
    ConfigurationError,
    CriticError,
    MissingExtra,
    PromptTooLong,
    StorageError,
)
from amc_agents.files import JsonLinesFile
from amc_agents.quoting import excerpt
from amc_agents.run import Run
from amc_agents.training.dataset import LoggedTrajectory, from_row, replace_dataset, to_row

_STOPS = (ConfigurationError, AgentContractError, CriticError, StorageError, MissingExtra)
HOPELESS = 8
"""Number of failures after which a comparison without any success ends."""
_MOST = 300


@dataclass(frozen=True)
class FailedRun:
    """One failure of one run."""

    method: str
    task: str
    seed: int
    error: str
    """Class and message."""

    @property
    def key(self) -> ItemKey:
        """The key of the run's work item."""
        return self.method, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FailedRun:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        return cls(**values)


class FailuresFile:
    """The file in which one process stores its failed runs. A context manager.

    Args:
        folder: the results folder.
        worker: names this process's file in a folder that several share.
    """

    def __init__(self, folder: str | Path, worker: str = "") -> None:
        self._file = JsonLinesFile(Path(folder) / f"failures{worker and '-'}{worker}.jsonl")
        self._failed = self._succeeded = 0

    def __enter__(self) -> FailuresFile:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.__exit__(kind, error, at)

    def add(self, item: WorkItem, error: Exception) -> None:
        """Append a failure.

        Raises:
            AmcError: so many runs failed, and none succeeded, that the cause must be in the agent or its set-up.
        """
        self.record(FailedRun(item.name, item.task, item.seed, described(error)), error)

    def record(self, run: FailedRun, error: Exception | None = None) -> None:
        """Append a failure, whose error may be that of another process. Raises as `add`."""
        self._file.append(run.to_json())
        self._failed += 1
        if self._failed >= HOPELESS and not self._succeeded:
            raise AmcError(f"the first {self._failed} runs all failed, the last with {run.error}") from error

    def succeeded(self) -> None:
        """Count a success."""
        self._succeeded += 1


def failed_runs(folder: str | Path, items: Sequence[WorkItem], done: Sequence[ItemKey]) -> list[FailedRun]:
    """Return the newest failure of every item that has no result, in the order of the items.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
    """
    newest = {run.key: run for run in open_failures(folder, done)}
    return [newest[item.key] for item in items if item.key in newest]


def open_failures(folder: str | Path, done: Collection[ItemKey]) -> list[FailedRun]:
    """Return the newest failure of every run of a folder that has no result. Raises as `failed_runs`."""
    newest: dict[ItemKey, FailedRun] = {}
    for file in sorted(Path(folder).glob(FAILURES)):
        for run in read_lines(file, FailedRun.from_json, "a failed run"):
            newest[run.key] = run
    finished = set(done)
    return [run for key, run in newest.items() if key not in finished]


def stops(error: Exception) -> bool:
    """Return whether an error ends the comparison: it is a fault of the set-up, which other runs would meet too."""
    return isinstance(error, _STOPS) and not isinstance(error, PromptTooLong)


def described(error: Exception) -> str:
    """Return the class and the message of an error, for a stored line."""
    return excerpt(f"{type(error).__name__}: {error}", _MOST)


def causes_of(errors: Iterable[str], most: int = 3) -> list[str]:
    """Return the most frequent errors with their counts."""
    counts = Counter(errors)
    shown = [f"{count} x {error}" for error, count in counts.most_common(most)]
    return shown + ([f"and {len(counts) - most} other errors"] if len(counts) > most else [])


@dataclass(frozen=True)
class RunDecisions:
    """The decisions of one run: one line of a file."""

    method: str
    task: str
    seed: int
    success: bool
    decisions: tuple[Mapping[str, Any], ...]
    """Plain values of `Decision.as_plain()`, in the order in which the decisions were made."""

    @property
    def key(self) -> ItemKey:
        """The key of the run's work item."""
        return self.method, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunDecisions:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        return cls(**{**values, "decisions": tuple(values["decisions"])})


class DecisionsFile:
    """The file in which one process stores the decisions of its runs. A context manager.

    Args:
        folder: the results folder.
        worker: names this process's file in a folder that several share.
    """

    def __init__(self, folder: str | Path, worker: str = "") -> None:
        self._file = JsonLinesFile(Path(folder) / f"decisions{worker and '-'}{worker}.jsonl")

    def __enter__(self) -> DecisionsFile:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.__exit__(kind, error, at)

    def add(self, run: RunDecisions) -> None:
        """Append the decisions of a run. The operating system has the whole line when this returns."""
        self._file.append(run.to_json(), allow_nan=False)


def read_decisions(folder: str | Path) -> list[RunDecisions]:
    """Read the decisions of a folder's runs, each run once.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
    """
    runs: dict[ItemKey, RunDecisions] = {}
    for file in sorted(Path(folder).glob(DECISIONS)):
        for run in read_lines(file, RunDecisions.from_json, "a run's decisions"):
            # A run that was interrupted between its two files is repeated, and the last line counts.
            runs[run.key] = run
    return list(runs.values())


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


def _stored(folder: Path) -> Iterator[RunTrajectories]:
    for file in sorted(folder.glob(TRAJECTORIES)):
        yield from read_lines(file, RunTrajectories.from_json, "a run's trajectories")
