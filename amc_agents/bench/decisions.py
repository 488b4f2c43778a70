"""The decisions of a comparison's runs on disk: `decisions*.jsonl` in the results folder, one run a line.

`amc_agents.bench.decision_report` evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from amc_agents.bench.results_folder import DECISIONS, read_lines
from amc_agents.bench.work import ItemKey
from amc_agents.files import JsonLinesFile


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
