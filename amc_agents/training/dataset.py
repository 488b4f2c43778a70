"""Trajectories on disk: Parquet shards in a folder, one row a trajectory.

A shard is written whole or not at all (to a temporary name, then moved), so that a collection that is
interrupted loses the shard in the making and no more, and goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from amc_agents.errors import CheckpointError, MissingExtra
from amc_agents.types import Step, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory and where it came from: one row of a dataset."""

    trajectory: Trajectory
    """The task's payload is not stored: it is None when read back."""
    group: int
    """Its index among the trajectories of its task."""
    policy: str = ""
    """Name of the policy that made it."""
    seed: int = 0
    """Seed of the run that made it."""
    settings: str = "{}"
    """How it was collected, as canonical JSON."""


def write_shard(folder: str | Path, records: Sequence[Record]) -> Path:
    """Adds one shard to a dataset, whole or not at all.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = arrow.Table.from_pylist([_to_row(record) for record in records], schema=_schema(arrow))
    number = 1 + max((int(path.stem.rpartition("-")[2]) for path in shards(folder)), default=-1)
    target = folder / f"trajectories-{number:05d}.parquet"
    unfinished = folder / f".{target.name}.{os.getpid()}.part"
    try:
        parquet.write_table(table, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def shards(folder: str | Path) -> list[Path]:
    """The shards of a dataset, in order; none where there is no dataset yet."""
    return sorted(Path(folder).glob("trajectories-*.parquet"))


def read_records(folder: str | Path) -> list[Record]:
    """Every row of a dataset, ordered by task and group, whatever order they were collected in.

    Raises:
        CheckpointError: there is no dataset, or a shard cannot be read.
        MissingExtra: pyarrow is not installed.
    """
    found = shards(folder)
    if not found:
        raise CheckpointError(f"no trajectories in {folder}: expected trajectories-*.parquet; collect some first")
    arrow, parquet = _pyarrow()
    records: list[Record] = []
    for shard in found:
        try:
            rows = parquet.read_table(shard, schema=_schema(arrow)).to_pylist()
        except (arrow.ArrowException, OSError) as error:
            raise CheckpointError(f"{shard} is not a shard of trajectories: {error}") from error
        records += [_from_row(row) for row in rows]
    return sorted(records, key=lambda record: (record.trajectory.task.id, record.group))


def read_trajectories(folder: str | Path) -> list[Trajectory]:
    """The trajectories of a dataset alone; errors as in `read_records`."""
    return [record.trajectory for record in read_records(folder)]


def data_hash(trajectories: Iterable[Trajectory]) -> str:
    """A fingerprint of trajectories, in their order: it says which data a model was trained on."""
    digest = hashlib.sha256()
    for trajectory in trajectories:
        # Message ids differ between two collections that are otherwise the same.
        steps = [(step.thought, step.action, step.observation, step.reward) for step in trajectory.steps]
        row = [trajectory.task.id, trajectory.task.instruction, trajectory.done, steps]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _to_row(record: Record) -> dict[str, Any]:
    trajectory = record.trajectory
    return {
        "task_id": trajectory.task.id,
        "instruction": trajectory.task.instruction,
        "steps": [{**asdict(step), "message_ids": list(step.message_ids)} for step in trajectory.steps],
        "done": trajectory.done,
        "return": trajectory.return_,
        "group": record.group,
        "policy": record.policy,
        "seed": record.seed,
        "settings": record.settings,
    }


def _from_row(row: dict[str, Any]) -> Record:
    steps = tuple(Step(**{**step, "message_ids": tuple(step["message_ids"])}) for step in row["steps"])
    trajectory = Trajectory(Task(row["task_id"], row["instruction"]), steps, row["done"])
    return Record(trajectory, row["group"], row["policy"], row["seed"], row["settings"])


def _schema(arrow: Any) -> Any:
    step = arrow.struct(
        [
            ("action", arrow.string()),
            ("observation", arrow.string()),
            ("thought", arrow.string()),
            ("reward", arrow.float64()),
            ("message_ids", arrow.list_(arrow.string())),
        ]
    )
    return arrow.schema(
        [
            ("task_id", arrow.string()),
            ("instruction", arrow.string()),
            ("steps", arrow.list_(step)),
            ("done", arrow.bool_()),
            ("return", arrow.float64()),
            ("group", arrow.int64()),
            ("policy", arrow.string()),
            ("seed", arrow.int64()),
            ("settings", arrow.string()),
        ]
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("pyarrow", "train") from error
