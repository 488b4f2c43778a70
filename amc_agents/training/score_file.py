"""The Parquet file with the values of a dataset's states: one row per trajectory.

Parts are first written to a folder beside the file, each atomically, so that an interrupted scoring loses at most one
part and resumes. The finished parts are then joined to the file, atomically.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.quoting import quoted
from amc_agents.training.dataset import pyarrow_or_error
from amc_agents.training.metrics import evaluate_states
from amc_agents.types import FloatArray


class ScoredTrajectory(NamedTuple):
    """A row of the file."""

    task_id: str
    group: int
    """Index among the trajectories of its task."""
    policy: str
    return_: float
    """Sum of the rewards; the column `return`."""
    values: FloatArray
    """`[T + 1]` calibrated value of each state, in reward units."""
    targets: FloatArray | None
    """`[T + 1]` observed outcome of each state; None if the trajectory is not done, or its outcome is unknown."""


@dataclass(frozen=True)
class ScoringPlan:
    """Critic and data of a scoring. Parts of another plan are not resumed."""

    critic: str
    """The critic's string, or the class of an object."""
    checkpoint: str
    """Fingerprint of a value model's checkpoint; "" for other critics."""
    predicts: str
    """Meaning of a value: "future", the return to come, or "return", the whole return."""
    beta: float | None
    """The only beta that the values are valid for (eq. 5); None: any."""
    data: str
    """Fingerprint of the dataset's files."""
    per_part: int
    """Trajectories per part."""

    def to_json(self) -> str:
        """Serialize the plan, for the file and the folder of parts."""
        return json.dumps(asdict(self))


class ScoreFile:
    """A score file that is being written.

    Args:
        path: path of the file.
        plan: critic and data of the scoring.

    Raises:
        ConfigurationError: the file, or parts of it, exist and have another plan.
        CheckpointError: the file exists but was not written by this class.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: str | Path, plan: ScoringPlan) -> None:
        self.path, self._plan = Path(path), plan
        self._arrow, self._parquet = pyarrow_or_error()
        self._parts = self.path.with_name(f"{self.path.name}.parts")
        plan_file = self._parts / _PLAN
        if self.path.exists():
            _require_same(plan, _plan_of(self.path), self.path)
        elif plan_file.exists():
            _require_same(plan, plan_file.read_text(), self._parts)
        else:
            self._parts.mkdir(parents=True, exist_ok=True)
            replace_file(plan_file, plan.to_json())

    @property
    def finished(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    def has(self, part: int) -> bool:
        """Whether a part exists."""
        return self._part(part).exists()

    def write(self, part: int, rows: Sequence[ScoredTrajectory]) -> None:
        """Write a part, atomically."""
        table = self._arrow.Table.from_pylist([_plain(row) for row in rows], schema=_schema(self._arrow))
        replace_file(self._part(part), lambda unfinished: self._parquet.write_table(table, unfinished))

    def finish(self, parts: int) -> None:
        """Join the parts 0 to `parts` - 1 to the file, one row group each, and remove them."""
        schema = _schema(self._arrow).with_metadata({_KEY: self._plan.to_json().encode()})

        def join(unfinished: Path) -> None:
            with self._parquet.ParquetWriter(unfinished, schema) as writer:
                for part in range(parts):
                    writer.write_table(self._parquet.read_table(self._part(part)).cast(schema))

        replace_file(self.path, join)
        shutil.rmtree(self._parts)

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:06d}.parquet"


class ScoredStates(NamedTuple):
    """`[S]` states of the finished trajectories of a score file."""

    values: FloatArray
    targets: FloatArray
    tasks: npt.NDArray[Any]
    """Task of each state."""


def is_score_file(path: str | Path) -> bool:
    """Return whether a file was written by `amc score`."""
    try:
        _plan_of(path)
    except CheckpointError:
        return False
    return True


def scored_states(path: str | Path) -> ScoredStates:
    """Read the values and outcomes of all states of finished trajectories with a known outcome.

    Raises:
        CheckpointError: the file is not a score file.
    """
    _plan_of(path)
    _, parquet = pyarrow_or_error()
    table = parquet.read_table(path, columns=["task_id", "values", "targets"])
    table = table.filter(table["targets"].is_valid())
    values = table["values"].combine_chunks()
    lengths = values.value_lengths().to_numpy()
    tasks = np.repeat(np.array(table["task_id"].to_pylist(), dtype=object), lengths)
    targets = table["targets"].combine_chunks().flatten().to_numpy()
    return ScoredStates(values.flatten().to_numpy(), targets, tasks)


def score_metrics(path: str | Path, success: float = 1.0) -> dict[str, Any]:
    """Compute the metrics of value training over the finished trajectories of a score file.

    Args:
        path: a file that `score` wrote.
        success: minimum return of a success.

    Returns:
        The metrics of `value.metrics.evaluate_states`. Only numbers are read, no texts.

    Raises:
        CheckpointError: the file is not a score file, or has no finished trajectory with a known outcome.
    """
    _plan_of(path)
    _, parquet = pyarrow_or_error()
    table = parquet.read_table(path, columns=["values", "targets", "return"])
    done = table["targets"].is_valid()
    table = table.filter(done)
    if not table.num_rows:
        raise CheckpointError(
            f"{path} has no finished trajectory with a known outcome, so there are no returns to compare values with"
        )
    lengths = table["values"].combine_chunks().value_lengths().to_numpy()
    ends = np.cumsum(lengths)
    final = np.zeros(int(ends[-1]), dtype=bool)
    final[ends - 1] = True
    return evaluate_states(
        table["values"].combine_chunks().flatten().to_numpy(),
        table["targets"].combine_chunks().flatten().to_numpy(),
        np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths),
        final,
        np.repeat(table["return"].to_numpy() >= success, lengths),
    )


def scoring_plan(path: str | Path) -> ScoringPlan:
    """Return the critic and data of a score file. Raises `CheckpointError`."""
    return ScoringPlan(**json.loads(_plan_of(path)))


def scored_values(path: str | Path) -> Iterator[FloatArray]:
    """Iterate over the values `[T + 1]` of each trajectory of a score file, in the order of the dataset."""
    _, parquet = pyarrow_or_error()
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["values"]):
            for values in batch["values"]:
                yield values.values.to_numpy()


def _require_same(plan: ScoringPlan, stored_json: str, where: Path) -> None:
    stored = json.loads(stored_json)
    differences = [
        f"{name} was {quoted(stored.get(name))}, is {quoted(value)}"
        for name, value in asdict(plan).items()
        if stored.get(name) != value
    ]
    if differences:
        raise ConfigurationError(
            f"{where} contains values of another scoring ({'; '.join(differences)}): choose another file, or delete it"
        )


def _plan_of(path: str | Path) -> str:
    arrow, parquet = pyarrow_or_error()
    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (arrow.ArrowException, OSError) as error:
        raise CheckpointError(f"{path} is not a Parquet file of values: {error}") from error
    if _KEY not in metadata:
        raise CheckpointError(f"{path} was not written by `amc score`: choose another file")
    plan: str = metadata[_KEY].decode()
    return plan


def _plain(row: ScoredTrajectory) -> dict[str, Any]:
    plain = row._asdict()
    return_ = plain.pop("return_")
    return {**plain, "return": None if math.isnan(return_) else return_}


def _schema(arrow: Any) -> Any:
    numbers = arrow.list_(arrow.float64())
    return arrow.schema(
        [
            ("task_id", arrow.string()),
            ("group", arrow.int64()),
            ("policy", arrow.string()),
            ("return", arrow.float64()),
            ("values", numbers),
            ("targets", numbers),
        ]
    )


_PLAN = "plan.json"
_KEY = b"amc_score"
"""Key of the plan in the file's metadata."""
