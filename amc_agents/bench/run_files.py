"""What a comparison stores of its runs beside their results: failures, decisions and trajectories, one run a line.

`failures*.jsonl`: a failed run has no result, so that it is neither a 0 nor dropped: reports count it, and a resumed
comparison runs it again. `decisions*.jsonl`: `amc_agents.bench.decision_report` evaluates them. `trajectories*.jsonl`:
`write_dataset` makes a dataset of them, which `amc score` and `amc train` read as they read that of `amc collect`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amc_agents.bench.records import RunResult, scored_trajectories
from amc_agents.bench.results_folder import DECISIONS, FAILURES, TRAJECTORIES, ItemKey, RunLine, WorkItem, newest_lines
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
class FailedRun(RunLine):
    """One failure of one run."""

    error: str
    """Class and message."""


class Failures:
    """The failed runs of one process.

    Args:
        file: receives them; open.
    """

    def __init__(self, file: JsonLinesFile) -> None:
        self._file = file
        self._failed = self._succeeded = 0

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
    newest, finished = newest_lines(folder, FAILURES, FailedRun, "a failed run"), set(done)
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
class RunDecisions(RunLine):
    """The decisions of one run."""

    success: bool
    decisions: tuple[Mapping[str, Any], ...]
    """Plain values of `Decision.as_plain()`, in the order in which the decisions were made."""


def read_decisions(folder: str | Path) -> list[RunDecisions]:
    """Read the decisions of a folder's runs, each run once.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
    """
    return list(newest_lines(folder, DECISIONS, RunDecisions, "a run's decisions").values())


DATASET = "trajectories"
"""The dataset's folder in a results folder."""


@dataclass(frozen=True)
class RunTrajectories(RunLine):
    """The trajectories of one run."""

    rows: tuple[Mapping[str, Any], ...]
    """Rows of `amc_agents.training.dataset`, in the order of the run's final population."""

    @classmethod
    def of(cls, result: RunResult, run: Run) -> RunTrajectories:
        """Return the trajectories behind a result. Failed particles are left out, as in its scores."""
        origin = json.dumps({"prompt": result.prompt, "seed": result.seed}, sort_keys=True)
        rows = [
            to_row(LoggedTrajectory(trajectory, group, result.method, run.seed, origin))
            for group, trajectory in enumerate(scored_trajectories(run))
        ]
        return cls(*result.key, tuple(rows))


def write_dataset(folder: str | Path, keys: Sequence[ItemKey]) -> Path | None:
    """Write the trajectories of some runs as a dataset, atomically; None if none are stored.

    Args:
        folder: the results folder.
        keys: the runs, in the order of the dataset. Groups are counted over all runs of a task, so that they differ.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
        MissingExtra: pyarrow is not installed.
    """
    runs = newest_lines(folder, TRAJECTORIES, RunTrajectories, "a run's trajectories")
    groups: dict[tuple[str, str], int] = {}
    records = []
    for row in (row for key in keys if key in runs for row in runs[key].rows):
        group = groups.get((row["task_id"], row["policy"]), 0)
        groups[row["task_id"], row["policy"]] = group + 1
        records.append(replace(from_row(row), group=group))
    return replace_dataset(Path(folder) / DATASET, records) if records else None
