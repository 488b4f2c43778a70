"""A run as plain values, read for display: from `Run.as_plain`, a file, or the event of a served graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object
from amc_agents.usage import Usage


@dataclass(frozen=True)
class PointView:
    """A weighing point of a stored run."""

    step: int
    values: Sequence[float]
    """`[N]`; NaN: unknown."""
    log_weights: Sequence[float]
    """`[N]`; -inf: weight 0."""
    ess: float
    ancestors: Sequence[int] | None
    selected: int | None
    """Slot of the particle that was selected to make a commit call; None: nothing was selected."""
    retired: Sequence[int]
    dropped: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class RunView:
    """What a page shows of a run. Trajectories are plain values."""

    best: Mapping[str, Any]
    best_index: int
    trajectories: Sequence[Mapping[str, Any]]
    returns: Sequence[float]
    values: Sequence[float]
    log_weights: Sequence[float]
    failed: Sequence[bool]
    history: Sequence[PointView]
    log_evidence: float
    usage: Mapping[str, Usage]
    usage_by_fate: Mapping[str, Usage]
    usage_by_model: Mapping[str, Mapping[str, Usage]]
    config: Mapping[str, Any]
    seed: int
    select: str
    deployable: bool
    stopped_by: str | None
    notes: Sequence[str]
    commits: Sequence[Mapping[str, Any]]

    @property
    def n_particles(self) -> int:
        """N: the number of slots at the end of the run."""
        return len(self.trajectories) - self.n_retired

    @property
    def has_rewards(self) -> bool:
        """Whether some trajectory has a return: a run without rewards has returns of 0."""
        return any(self.returns)

    @property
    def n_retired(self) -> int:
        """Number of particles that a resampling retired."""
        return sum(len(point.retired) for point in self.history)

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> RunView:
        """Read what `Run.as_plain` returned.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the values are not those of a run.
        """
        population = run["population"]
        return cls(
            best=run["best"],
            best_index=run["best_index"],
            trajectories=population["trajectories"],
            returns=[_number(value, math.nan) for value in population["returns"]],
            values=[_number(value, math.nan) for value in population["values"]],
            log_weights=[_number(value, -math.inf) for value in population["log_weights"]],
            failed=population["failed"] or [False] * len(population["trajectories"]),
            history=[_point(point) for point in run["history"]],
            log_evidence=_number(run["log_evidence"], math.nan),
            usage=_usages(run["usage"]),
            usage_by_fate=_usages(run.get("usage_by_fate", {})),
            usage_by_model={role: _usages(models) for role, models in run.get("usage_by_model", {}).items()},
            config=run["config"],
            seed=run["seed"],
            select=run["select"],
            deployable=run["deployable"],
            stopped_by=run.get("stopped_by"),
            notes=run.get("notes", ()),
            commits=run.get("commits", ()),
        )


def read_run(path: Path) -> RunView:
    """Read a file that `Run.save` wrote.

    Raises:
        CheckpointError: the file cannot be read, or does not hold a run.
    """
    remedy = "expected a run as run.save(FOLDER) writes it"
    values = read_json_object(path, remedy=remedy)
    try:
        return RunView.of(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not hold a run ({type(error).__name__}: {error}): {remedy}") from error


def _point(point: Mapping[str, Any]) -> PointView:
    return PointView(
        step=point["step"],
        values=[_number(value, math.nan) for value in point["values"]],
        log_weights=[_number(value, -math.inf) for value in point["log_weights"]],
        ess=_number(point["ess"], math.nan),
        ancestors=point["ancestors"],
        selected=point.get("selected"),
        retired=point.get("retired", ()),
        dropped={int(slot): trajectory for slot, trajectory in point.get("dropped", {}).items()},
    )


def _usages(usages: Mapping[str, Mapping[str, int]]) -> dict[str, Usage]:
    return {name: Usage(**counts) for name, counts in usages.items()}


def _number(value: float | None, unknown: float) -> float:
    return unknown if value is None else float(value)
