"""The values of a dataset's states on disk: one Parquet file, one row a trajectory, whole or not there.

While it is made, parts lie in a folder beside it. Each part is written whole or not at all, so that scoring which is
interrupted loses the part in the making and no more, and goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.training.dataset import pyarrow_or_error
from amc_agents.training.value.metrics import evaluate_states
from amc_agents.types import FloatArray


class ScoredTrajectory(NamedTuple):
    """One row of the file."""

    task_id: str
    group: int
    """Its index among the trajectories of its task."""
    policy: str
    return_: float
    """Sum of its rewards: the column `return`."""
    values: FloatArray
    """`[T + 1]` the critic's value of each state, in reward units, calibrated."""
    targets: FloatArray | None
    """`[T + 1]` what came of each state; None where the trajectory is not done, so that it is not known."""


@dataclass(frozen=True)
class ScoringPlan:
    """What is scored by what: parts of another plan are not gone on with."""

    critic: str
    """Its string."""
    checkpoint: str
    """Fingerprint of a value model's checkpoint; "" for other critics."""
    predicts: str
    """What a value is: "future", the return still to come, or "return", the whole return."""
    beta: float | None
    """The one beta that the values hold for (eq. 5); None: any."""
    data: str
    """Fingerprint of the dataset's files."""
    per_part: int
    """Trajectories of a part."""

    def to_json(self) -> str:
        """As it is kept in the file and beside the parts."""
        return json.dumps(asdict(self))


class ScoreFile:
    """The file in the making.

    Args:
        path: where it is to be.
        plan: what is scored by what.

    Raises:
        ConfigurationError: the file, or parts of it, are there and were made by another plan.
        CheckpointError: what is there was not written by this class.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: str | Path, plan: ScoringPlan) -> None:
        self.path, self._plan = Path(path), plan
        self._arrow, self._parquet = pyarrow_or_error()
        self._parts = self.path.with_name(f"{self.path.name}.parts")
        told = self._parts / _PLAN
        if self.path.exists():
            _require_same(plan, _plan_of(self.path), self.path)
        elif told.exists():
            _require_same(plan, told.read_text(), self._parts)
        else:
            self._parts.mkdir(parents=True, exist_ok=True)
            replace_file(told, plan.to_json())

    @property
    def finished(self) -> bool:
        """Whether the whole file is there."""
        return self.path.exists()

    def has(self, part: int) -> bool:
        """Whether a part is there."""
        return self._part(part).exists()

    def write(self, part: int, rows: Sequence[ScoredTrajectory]) -> None:
        """Adds a part, whole or not at all."""
        table = self._arrow.Table.from_pylist([_plain(row) for row in rows], schema=_schema(self._arrow))
        replace_file(self._part(part), lambda unfinished: self._parquet.write_table(table, unfinished))

    def finish(self, parts: int) -> None:
        """Joins the parts 0 to `parts` - 1 to the file, one row group each, and takes them away."""
        schema = _schema(self._arrow).with_metadata({_KEY: self._plan.to_json().encode()})

        def join(unfinished: Path) -> None:
            with self._parquet.ParquetWriter(unfinished, schema) as writer:
                for part in range(parts):
                    writer.write_table(self._parquet.read_table(self._part(part)).cast(schema))

        replace_file(self.path, join)
        shutil.rmtree(self._parts)

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:06d}.parquet"


def score_metrics(path: str | Path, success: float = 1.0) -> dict[str, Any]:
    """How well the values of a file predict what came: the metrics of training, over its finished trajectories.

    Args:
        path: what `score` wrote.
        success: the least return that counts as a success.

    Returns:
        As `value_metrics.evaluate`. Only the numbers are in memory, never the texts.

    Raises:
        CheckpointError: it is no such file, or holds no finished trajectory.
    """
    _plan_of(path)
    _, parquet = pyarrow_or_error()
    table = parquet.read_table(path, columns=["values", "targets", "return"])
    done = table["targets"].is_valid()
    table = table.filter(done)
    if not table.num_rows:
        raise CheckpointError(f"{path} holds no finished trajectory: no return is known to compare values with")
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


def _require_same(plan: ScoringPlan, found: str, where: Path) -> None:
    theirs = json.loads(found)
    other = [
        f"{name} was {theirs.get(name)!r}, is {value!r}"
        for name, value in asdict(plan).items()
        if theirs.get(name) != value
    ]
    if other:
        raise ConfigurationError(
            f"{where} holds values made otherwise ({'; '.join(other)}): choose another file, or delete it"
        )


def _plan_of(path: str | Path) -> str:
    arrow, parquet = pyarrow_or_error()
    try:
        found = parquet.read_schema(path).metadata or {}
    except (arrow.ArrowException, OSError) as error:
        raise CheckpointError(f"{path} is not a Parquet file of values: {error}") from error
    if _KEY not in found:
        raise CheckpointError(f"{path} was not written by `amc score`: choose another file")
    plan: str = found[_KEY].decode()
    return plan


def _plain(row: ScoredTrajectory) -> dict[str, Any]:
    plain = row._asdict()
    return {**plain, "return": plain.pop("return_")}


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
"""Where the plan is in the file's metadata."""
