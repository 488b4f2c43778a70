"""Every decision of a comparison's runs on disk: `decisions*.jsonl` in its results folder, one run a line.

What they say is told by `amc_agents.bench.decision_report`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from amc_agents.bench.records import DECISIONS
from amc_agents.errors import CheckpointError
from amc_agents.files import JsonLinesFile


@dataclass(frozen=True)
class RunDecisions:
    """The decisions of one run: one line of a file."""

    method: str
    task: str
    seed: int
    success: bool
    decisions: tuple[Mapping[str, Any], ...]
    """As `Decision.as_plain()` gives them, in the order in which they were made."""

    @property
    def key(self) -> tuple[str, str, int]:
        """The run that it is of."""
        return self.method, self.task, self.seed


class DecisionsFile:
    """Where one process keeps the decisions of its runs. A context manager.

    Args:
        folder: the results folder.
        worker: name of this process's file, where several share the folder.
    """

    def __init__(self, folder: str | Path, worker: str = "") -> None:
        self._file = JsonLinesFile(Path(folder) / f"decisions{worker and '-'}{worker}.jsonl")

    def __enter__(self) -> DecisionsFile:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.__exit__(kind, error, at)

    def add(self, played: RunDecisions) -> None:
        """Keep the decisions of a run: they are in the file when this returns."""
        self._file.append(asdict(played), allow_nan=False)


def read_decisions(folder: str | Path) -> list[RunDecisions]:
    """The decisions of a folder's runs, each run once.

    Raises:
        CheckpointError: a line that is not what it should be, elsewhere than at a file's end.
    """
    found: dict[tuple[str, str, int], RunDecisions] = {}
    for file in sorted(Path(folder).glob(DECISIONS)):
        # What follows the last line break is empty, or a line that was being written.
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n")[:-1], start=1):
            try:
                values = json.loads(line)
                played = RunDecisions(**values | {"decisions": tuple(values["decisions"])})
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{file}, line {number}, is not a run's decisions: {error!r}") from error
            # A run that was interrupted between its two files is played again.
            found[played.key] = played
    return list(found.values())
