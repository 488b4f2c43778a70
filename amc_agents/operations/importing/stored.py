"""The imported runs of a dataset: which ones it contains, and the outcomes that arrive later.

The shards are the only record of what was imported, so that a killed import leaves nothing to repair.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.operations.importing.outcomes import outcome_in
from amc_agents.training.dataset import LoggedTrajectory, rewrite_shard, shard_rows, shards
from amc_agents.types import Trajectory


@dataclass(frozen=True, slots=True)
class ImportedFrom:
    """The origin of an imported trajectory; the `settings` of its row."""

    kind: str
    thread: str
    turn: int
    run_id: str
    version: str
    """Version of the conversation when the run was imported."""
    text: str
    """Fingerprint of the trajectory before redaction."""
    joined: bool = False
    """Whether the outcome comes from a table, which takes precedence over the logs."""
    trial: str = ""
    """As in `Origin`; so are the times."""
    started: str = ""
    ended: str = ""
    commit_tools: tuple[str, ...] = ()
    """Names of the agent's commit tools, as in `LoggedTrajectory.commit_tools`."""

    @property
    def key(self) -> bytes:
        """Identify the run."""
        return run_key(self.thread, self.turn, self.run_id)

    def to_settings(self) -> str:
        """Serialize for the column `settings`."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "commit_tools"}
        tools = {"commit_tools": list(self.commit_tools)} if self.commit_tools else {}
        return json.dumps({"imported": fields, **tools}, sort_keys=True)

    @classmethod
    def of_settings(cls, settings: str) -> ImportedFrom | None:
        """Read the column `settings`; None: the trajectory was not imported."""
        plain = json.loads(settings)
        fields = plain.get("imported")
        return None if fields is None else cls(**fields, commit_tools=tuple(plain.get("commit_tools", ())))


class StoredRun(NamedTuple):
    """What the import must know about a run of the dataset."""

    text: str
    outcome: float
    """NaN: unknown."""
    joined: bool
    new: bool = False
    """Whether this import has added it."""


def run_key(thread: str, turn: int, run_id: str = "") -> bytes:
    """Identify a run of a dataset in 16 bytes: by its own id, if it has one."""
    name = f"run {run_id}" if run_id else f"{turn} {thread}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class StoredRuns:
    """The runs of a dataset, read from its shards. Takes some 300 bytes of memory per trajectory.

    Args:
        folder: the dataset's; it may be missing.
    """

    def __init__(self, folder: Path) -> None:
        self.runs: dict[bytes, StoredRun] = {}
        self.groups: Counter[str] = Counter()
        """Number of trajectories of each task."""
        self._versions: set[bytes] = set()
        for shard in shards(folder):
            for _, row in shard_rows(shard, _SMALL):
                self.groups[row["task_id"]] += 1
                origin = ImportedFrom.of_settings(row["settings"])
                if origin is not None:
                    outcome = math.nan if row["return"] is None else row["return"]
                    self.runs[origin.key] = StoredRun(origin.text, outcome, origin.joined)
                    self._versions.add(_version_key(origin.thread, origin.version))

    def has_version(self, thread: str, version: str) -> bool:
        """Return whether a run of the conversation was imported from this version of it, which ended with that run."""
        return _version_key(thread, version) in self._versions

    def add(self, origin: ImportedFrom, outcome: float, task: str) -> int:
        """Record a new run, and return its index among the trajectories of its task."""
        self.runs[origin.key] = StoredRun(origin.text, outcome, origin.joined, new=True)
        group = self.groups[task]
        self.groups[task] += 1
        return group


class OutcomeUpdate(NamedTuple):
    """What became of outcomes that arrived after their runs."""

    changes: int
    """Trajectories whose outcome arrived or changed."""
    unmatched: int
    """Ids in the table that belong to no run of the dataset."""


def update_outcomes(folder: Path, from_logs: Mapping[bytes, float], table: Mapping[str, float]) -> OutcomeUpdate:
    """Change the outcomes of stored runs; only the shards that contain them are rewritten.

    Args:
        folder: the dataset's.
        from_logs: run -> its outcome; without the runs whose outcome comes from a table.
        table: thread or run id -> outcome.

    Raises:
        StorageError: a shard cannot be written.
    """
    changes = 0
    unmatched = set(table)
    for shard in shards(folder) if from_logs or table else ():
        # The large columns are read only for shards that change.
        updates = []
        for _, row in shard_rows(shard, _SMALL):
            origin = ImportedFrom.of_settings(row["settings"])
            updates.append(None if origin is None else _update(origin, row["return"], from_logs, table))
            unmatched -= set() if origin is None else {origin.thread, origin.run_id}
        if any(updates):
            rewrite_shard(shard, updates)
            changes += sum(update is not None for update in updates)
    return OutcomeUpdate(changes, len(unmatched))


def with_outcome(trajectory: Trajectory, outcome: float) -> Trajectory:
    """Return a trajectory whose outcome is the reward of its last step; NaN: the outcome is unknown."""
    last = replace(trajectory.steps[-1], reward=outcome)
    return replace(trajectory, steps=(*trajectory.steps[:-1], last))


def _update(
    origin: ImportedFrom, stored: float | None, from_logs: Mapping[bytes, float], table: Mapping[str, float]
) -> Callable[[LoggedTrajectory], LoggedTrajectory] | None:
    """Return the change of a stored run; None: it stays as it is."""
    in_table = outcome_in(table, thread=origin.thread, run_id=origin.run_id)
    outcome = from_logs.get(origin.key) if in_table is None else in_table
    joined = in_table is not None
    if outcome is None or (outcome == stored and joined == origin.joined):
        return None
    settings = replace(origin, joined=joined).to_settings()
    return lambda record: replace(record, trajectory=with_outcome(record.trajectory, outcome), settings=settings)


def _version_key(thread: str, version: str) -> bytes:
    return run_key(f"{version} of {thread}", -1)


_SMALL: Any = ("settings", "task_id", "return")
