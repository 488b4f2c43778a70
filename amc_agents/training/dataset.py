"""Datasets of trajectories: Parquet shards in a folder, one row per trajectory.

A shard is written atomically, so that an interrupted collection loses at most one shard and resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.errors import CheckpointError, ConfigurationError, MissingExtra
from amc_agents.files import replace_file, storage_errors, taking_turns
from amc_agents.quoting import excerpt, quoted, without_credentials
from amc_agents.types import Step, Task, Trajectory


@dataclass(frozen=True, slots=True)
class LoggedTrajectory:
    """A row of a dataset: a trajectory and its origin."""

    trajectory: Trajectory
    """The task's payload is not stored; it is None when read back."""
    group: int
    """Index among the trajectories of its task."""
    policy: str = ""
    """Name of the policy."""
    seed: int = 0
    """Seed of the run."""
    settings: str = "{}"
    """Settings of the collection, or the origin of an imported trajectory, as JSON with sorted keys."""

    @property
    def outcome_known(self) -> bool:
        """False if the outcome of an imported trajectory has not arrived yet: its return is NaN, and null on disk."""
        return not math.isnan(self.trajectory.return_)

    @property
    def commit_tools(self) -> tuple[str, ...]:
        """Names of the agent's commit tools, before whose calls particles wait at run time; from `settings`."""
        try:
            return tuple(map(str, json.loads(self.settings).get("commit_tools", ())))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"the settings of a trajectory are damaged: expected a JSON object, got {quoted(self.settings)}"
            ) from error


def commit_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of commit tools, sorted and without duplicates."""
    return tuple(sorted({names} if isinstance(names, str) else set(names)))


def refuse_credentials(policy: str, settings: Mapping[str, Any] | None = None) -> None:
    """Refuse the name of a policy, or settings, in which a URL has credentials: datasets are shared.

    Raises:
        ConfigurationError: they do.
    """
    for what, text in (("name of the policy", policy), ("settings", json.dumps(settings or {}, default=str))):
        if without_credentials(text) != text:
            raise ConfigurationError(
                f"the {what} of the dataset contains a key, {excerpt(text)}: expected a URL without a user name, a "
                "password or a key in its query"
            )


def write_shard(folder: str | Path, records: Sequence[LoggedTrajectory]) -> Path:
    """Add a shard to a dataset, atomically. Several processes may add to the same dataset.

    Raises:
        StorageError: the shard cannot be written.
        MissingExtra: pyarrow is not installed.
    """
    with _adding(folder):
        return _write_shard(Path(folder), records)


@contextmanager
def _adding(folder: str | Path) -> Iterator[None]:
    """Lock a dataset for adding while the block runs; wait for other processes.

    Raises:
        StorageError: the folder cannot be created or written.
    """
    with storage_errors(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    with taking_turns(Path(folder) / ".lock"):
        yield


def rewrite_shard(shard: Path, changes: Sequence[Callable[[LoggedTrajectory], LoggedTrajectory] | None]) -> None:
    """Replace a shard atomically by one with changed records.

    Args:
        shard: path of the shard.
        changes: for each row, the function that changes it; None: it stays as it is.

    Raises:
        CheckpointError: the shard cannot be read.
        StorageError: the shard cannot be written.
    """
    with _adding(shard.parent):
        records = [_from_shard(row, shard) for _, row in shard_rows(shard)]
        changed = (
            record if change is None else change(record) for record, change in zip(records, changes, strict=True)
        )
        _write_records(shard, list(changed))


def write_new_tasks(folder: str | Path, records: Sequence[LoggedTrajectory]) -> None:
    """Add a shard of the records whose task the dataset does not contain yet, if any.

    Another process may have collected some of the tasks in the meantime.

    Raises:
        StorageError: the shard cannot be written.
    """
    with _adding(folder):
        known = {task for task, _ in collected_tasks(folder)}
        new = [record for record in records if record.trajectory.task.id not in known]
        if new:
            _write_shard(Path(folder), new)


def _write_shard(folder: Path, records: Sequence[LoggedTrajectory]) -> Path:
    number = 1 + max((int(path.stem.rpartition("-")[2]) for path in shards(folder)), default=-1)
    target = folder / f"trajectories-{number:05d}.parquet"
    _write_records(target, records)
    return target


def replace_dataset(folder: str | Path, records: Sequence[LoggedTrajectory]) -> Path:
    """Write the only shard of a dataset atomically, in place of an earlier version. Returns its path.

    Raises:
        StorageError: the shard cannot be written.
        MissingExtra: pyarrow is not installed.
    """
    target = Path(folder) / "trajectories-00000.parquet"
    with _adding(folder):
        _write_records(target, records)
    return target


def _write_records(target: Path, records: Sequence[LoggedTrajectory]) -> None:
    arrow, parquet = pyarrow_or_error()
    schema = _schema(arrow).with_metadata({"amc_sha256": "0" * 64})
    table = arrow.Table.from_pylist([to_row(record) for record in records], schema=schema)

    def write(unfinished: Path) -> None:
        parquet.write_table(table, unfinished)
        place, digest = _checksum(unfinished) or (slice(0), "")
        with unfinished.open("r+b") as file:
            file.seek(place.start)
            file.write(digest.encode())

    replace_file(target, write)


def _checksum(shard: Path) -> tuple[slice, str] | None:
    """Return the place of a shard's checksum in its file, and what it must be: the hash of all other bytes.

    Parquet's own checksums leave out the descriptions of columns and pages. None: an older version of this library
    wrote the shard, without a checksum.
    """
    content = bytearray(shard.read_bytes())
    # In Parquet's metadata, which are at the end: the name, two bytes, the value.
    at = content.rfind(b"amc_sha256") + len(b"amc_sha256") + 2
    if at < 12:
        return None
    place = slice(at, at + 64)
    content[place] = b"0" * 64
    return place, hashlib.sha256(content).hexdigest()


def _is_intact(shard: Path) -> bool:
    checksum = _checksum(shard)
    if checksum is None:
        return True
    place, digest = checksum
    with shard.open("rb") as file:
        file.seek(place.start)
        return file.read(64) == digest.encode()


def shards(folder: str | Path) -> list[Path]:
    """List the shards of a dataset in order; the list is empty if the dataset does not exist."""
    return sorted(Path(folder).glob("trajectories-*.parquet"))


def iter_records(
    folder: str | Path,
    *,
    best_of: int | None = None,
    policies: Sequence[str] | None = None,
    known_outcomes: bool = False,
) -> Iterator[LoggedTrajectory]:
    """Iterate over the rows of a dataset, shard by shard, with only a few rows in memory.

    Args:
        folder: folder of the dataset.
        best_of: G; keep only the trajectory with the highest return (the earliest if equal) of each policy's first G
            trajectories of each task, by `group` (AMC, appendix B). None: all.
        policies: keep only trajectories of these policies (AMC, table 6). None: all.
        known_outcomes: keep only trajectories whose outcome is known; `best_of` implies it.

    Raises:
        CheckpointError: the dataset does not exist, or a shard cannot be read.
        ConfigurationError: `best_of` is less than 1, or a policy has no trajectory.
        MissingExtra: pyarrow is not installed.
    """
    return records_at(selected(folder, best_of=best_of, policies=policies, known_outcomes=known_outcomes))


def records_at(kept: Mapping[Path, bytearray]) -> Iterator[LoggedTrajectory]:
    """Iterate over the rows that `selected` has marked."""
    for shard, chosen in kept.items():
        for number, row in shard_rows(shard):
            if chosen[number]:
                yield _from_shard(row, shard)


def selected(
    folder: str | Path,
    *,
    best_of: int | None = None,
    policies: Sequence[str] | None = None,
    known_outcomes: bool = False,
) -> dict[Path, bytearray]:
    """Mark the rows that `iter_records` yields: shard -> a byte per row. Reads only the small columns.

    Arguments and errors are those of `iter_records`.
    """
    if best_of is not None and best_of < 1:
        raise ConfigurationError(f"best_of is {best_of}: expected at least 1, or None for all trajectories")
    kept = {shard: bytearray() for shard in shards(folder)}
    if not kept:
        raise CheckpointError(f"no trajectories in {folder}: expected trajectories-*.parquet; run `amc collect` first")
    known: set[str] = set()
    first: dict[tuple[str, str], list[_Candidate]] = {}
    for shard in kept:
        for number, row in shard_rows(shard, ["task_id", "group", "policy", "return"]):
            known.add(row["policy"])
            matches = policies is None or row["policy"] in policies
            if known_outcomes or best_of is not None:
                matches = matches and row["return"] is not None
            kept[shard].append(matches and best_of is None)
            if best_of is None or not matches:
                continue
            candidates = first.setdefault((row["task_id"], row["policy"]), [])
            candidates.append(_Candidate(row["group"], row["return"], shard, number))
            candidates.sort(key=lambda candidate: candidate.group)
            del candidates[best_of:]
    missing = sorted(set(policies or ()) - known)
    if missing:
        raise ConfigurationError(
            f"no trajectory of policy {', '.join(missing)} in {folder}: its policies are {sorted(known)}"
        )
    for candidates in first.values():
        best = max(candidates, key=lambda candidate: candidate.return_)
        kept[best.shard][best.number] = True
    return kept


def read_records(
    folder: str | Path, *, best_of: int | None = None, policies: Sequence[str] | None = None
) -> list[LoggedTrajectory]:
    """Read the rows of a dataset, ordered by task and group.

    Arguments and errors are those of `iter_records`.
    """
    records = iter_records(folder, best_of=best_of, policies=policies)
    return sorted(records, key=lambda record: (record.trajectory.task.id, record.group))


def collected_tasks(folder: str | Path) -> set[tuple[str, str]]:
    """Return (task id, settings) of the collected tasks; empty if the dataset does not exist."""
    columns = ["task_id", "settings"]
    return {(row["task_id"], row["settings"]) for shard in shards(folder) for _, row in shard_rows(shard, columns)}


def unknown_outcomes(folder: str | Path) -> int:
    """Count the trajectories of a dataset whose outcome is unknown."""
    return sum(row["return"] is None for shard in shards(folder) for _, row in shard_rows(shard, ["return"]))


def read_trajectories(
    folder: str | Path, *, best_of: int | None = None, policies: Sequence[str] | None = None
) -> list[Trajectory]:
    """Read trajectories without their origin; arguments, order and errors are those of `read_records`."""
    return [record.trajectory for record in read_records(folder, best_of=best_of, policies=policies)]


def best_trajectories(trajectories: Iterable[Trajectory], best_of: int) -> list[Trajectory]:
    """Return the trajectory with the highest return of each task's first `best_of` trajectories."""
    first: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        siblings = first.setdefault(trajectory.task.id, [])
        if len(siblings) < best_of:
            siblings.append(trajectory)
    return [max(siblings, key=lambda trajectory: trajectory.return_) for siblings in first.values()]


def dataset_hash(folder: str | Path) -> str:
    """Fingerprint a dataset: the names and bytes of its shards."""
    digest = hashlib.sha256()
    for shard in shards(folder):
        with shard.open("rb") as file:
            digest.update(f"{shard.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def data_hash(trajectories: Iterable[Trajectory]) -> str:
    """Fingerprint trajectories, in their order; identifies a model's training data."""
    digest = hashlib.sha256()
    for trajectory in trajectories:
        # Message ids differ between two otherwise equal collections.
        steps = [(step.thought, step.action, step.observation, step.reward) for step in trajectory.steps]
        row = [trajectory.task.id, trajectory.task.instruction, trajectory.done, steps]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


class _Candidate(NamedTuple):
    group: int
    return_: float
    shard: Path
    number: int


def shard_rows(shard: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over (number, row) of a shard, reading only the named columns; None: all.

    Raises:
        CheckpointError: the shard cannot be read.
    """
    arrow, parquet = pyarrow_or_error()
    columns = _schema(arrow).names if columns is None else columns
    number = 0
    try:
        if not _is_intact(shard):
            raise CheckpointError(
                f"{shard} is damaged: its bytes are not those that were written (checksum). Restore the file, or "
                "collect or import its tasks again in a new folder"
            )
        # Opened here, because a reader that fails keeps its file open as long as its error is kept.
        # Without a buffered reader, whole columns of a row group are read at once.
        with (
            arrow.OSFile(str(shard)) as source,
            parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True) as file,
        ):
            missing = set(columns) - set(file.schema_arrow.names)
            if missing:
                raise CheckpointError(f"{shard} is not a shard of trajectories: it lacks {', '.join(sorted(missing))}")
            for batch in file.iter_batches(_AT_ONCE, columns=list(columns), use_threads=False):
                for row in batch.to_pylist():
                    _check_row(row, shard)
                    yield number, row
                    number += 1
    except MemoryError:  # Arrow's own MemoryError is also an ArrowException, but is not the shard's fault
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        cause = excerpt(str(error), 120)
        raise CheckpointError(
            f"{shard} is not a shard of trajectories ({cause}): collect or import its tasks again in a new folder, or "
            "restore the file"
        ) from error


def to_row(record: LoggedTrajectory) -> dict[str, Any]:
    """Convert a record to plain values, by column."""
    trajectory = record.trajectory
    return {
        "task_id": trajectory.task.id,
        "instruction": trajectory.task.instruction,
        "steps": [
            {
                "action": step.action,
                "observation": step.observation,
                "thought": step.thought,
                "reward": step.reward,
                "message_ids": list(step.message_ids),
            }
            for step in trajectory.steps
        ],
        "done": trajectory.done,
        "return": trajectory.return_ if record.outcome_known else None,
        "group": record.group,
        "policy": record.policy,
        "seed": record.seed,
        "settings": record.settings,
    }


def from_row(row: Mapping[str, Any]) -> LoggedTrajectory:
    """Invert `to_row`. Raises `KeyError` or `TypeError` for other values."""
    _check_kinds(row, _KINDS)
    steps = tuple(_step(step) for step in row["steps"])
    trajectory = Trajectory(Task(row["task_id"], row["instruction"]), steps, row["done"])
    return LoggedTrajectory(trajectory, row["group"], row["policy"], row["seed"], row["settings"])


def _from_shard(row: Mapping[str, Any], shard: Path) -> LoggedTrajectory:
    try:
        return from_row(row)
    except (KeyError, TypeError) as error:
        raise _damaged(row, shard, error) from error


def _check_row(row: Mapping[str, Any], shard: Path) -> None:
    """Raise `CheckpointError` if a value of some columns has another type than its column should have."""
    try:
        _check_kinds(row, [name for name in _KINDS if name in row])
        if not isinstance(row.get("return"), float | int | None):
            raise TypeError(f"its return is {quoted(row['return'])}")
    except TypeError as error:
        raise _damaged(row, shard, error) from error


def _check_kinds(row: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(row[name], _KINDS[name]):
            raise TypeError(f"its {name} is {quoted(row[name])}")


def _damaged(row: Mapping[str, Any], shard: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{shard} is not a shard of trajectories: the row of task {quoted(row.get('task_id'), 60)} is damaged "
        f"({excerpt(str(error), 100)})"
    )


def _step(step: dict[str, Any]) -> Step:
    """Restore a step. Raises `KeyError` or `TypeError` if a value is missing."""
    texts = step["action"], step["observation"], step["thought"]
    # Joining checks the types.
    "".join((*texts, *step["message_ids"]))
    return Step(*texts, step["reward"] + 0.0, tuple(step["message_ids"]))


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


def pyarrow_or_error() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet.

    Raises:
        MissingExtra: they are not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("pyarrow", "train") from error


_KINDS: dict[str, type] = {
    "task_id": str, "instruction": str, "steps": list, "done": bool, "group": int, "policy": str, "seed": int,
    "settings": str,
}  # fmt: skip
"""Types of a row's values that must not be missing."""
_BUFFER = 1 << 16
"""Bytes of a column read at once."""
_AT_ONCE = 32
"""Rows of a shard in memory at a time."""
