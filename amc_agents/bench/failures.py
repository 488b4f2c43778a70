"""Failed runs of a comparison on disk: `failures*.jsonl` in the results folder, one failure a line.

A failed run has no result, so that it is neither a 0 nor dropped: reports count it, and a resumed comparison runs it
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from amc_agents.bench.results_folder import FAILURES, read_lines
from amc_agents.bench.work import ItemKey, WorkItem
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
