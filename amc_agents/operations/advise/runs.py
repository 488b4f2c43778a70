"""The runs of a dataset as arrays, task by task: what the methods of `replay` choose from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.smc.weights import BoolArray
from amc_agents.training.dataset import LoggedTrajectory, iter_records
from amc_agents.types import FloatArray, Trajectory

AnswerOf = Callable[[Trajectory], str]
"""Trajectory -> what it answered; runs of a task with equal texts agree."""
CHARACTERS_PER_TOKEN = 4
LEAST_ENDINGS = 0.1
"""Share of the runs that must end by the same action for it to count as the agent's way of ending."""


@dataclass(frozen=True, eq=False)
class TaskRuns:
    """The `n` runs of a task whose outcome is known. What the logs do not say is NaN."""

    task: str
    trajectories: tuple[Trajectory, ...]
    success: FloatArray
    """`[n]` outcomes, in the unit of the logs."""
    steps: FloatArray
    """`[n]` numbers of steps."""
    tokens: FloatArray
    """`[n]` tokens, as `Runs.tokens_are` says."""
    cost: FloatArray
    """`[n]` cost as logged, in dollars."""
    seconds: FloatArray
    """`[n]` from the start of the run to its end."""
    by_itself: BoolArray
    """`[n]` whether the agent ended the run, and not a limit."""
    answers: tuple[str, ...]
    """What each run answered."""

    def __len__(self) -> int:
        """Return the number of runs, n."""
        return len(self.trajectories)


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of a dataset, by task."""

    tasks: tuple[TaskRuns, ...]
    tokens_are: str
    """ "logged", or "text": four characters of the trajectory's text each, where some run has no count."""
    unknown: int
    """Number of runs that were left out, because their outcome is unknown."""

    @property
    def n_runs(self) -> int:
        """Number of runs with a known outcome."""
        return sum(map(len, self.tasks))

    @property
    def most(self) -> int:
        """The largest number of runs that at least half of the tasks have."""
        return int(np.quantile([len(task) for task in self.tasks], 0.5, method="lower"))


def read_runs(data: str | Path, *, answer: AnswerOf | None = None) -> Runs:
    """Read a dataset that `amc import` or `amc collect` wrote.

    Args:
        data: folder of the dataset.
        answer: what a run answered; None: the text of its last action.

    Raises:
        CheckpointError: the folder is not a dataset.
        ConfigurationError: no outcome is known.
    """
    records = list(iter_records(data))
    known = [record for record in records if record.outcome_known]
    if not known:
        raise ConfigurationError(
            f"none of the {len(records):,} runs in {data} has a known outcome: join one (amc import --outcomes FILE "
            f"--out {data}), or name the field that has it (amc import LOGS --reward FIELD)"
        )
    logged = [_logged(record) for record in known]
    counted = all(math.isfinite(each.tokens) for each in logged)
    if not counted:
        logged = [replace(each, tokens=each.trajectory.length / CHARACTERS_PER_TOKEN) for each in logged]
    closing = closing_actions(each.trajectory for each in logged)
    by_task: dict[str, list[_Logged]] = {}
    for each in logged:
        by_task.setdefault(each.trajectory.task.id, []).append(each)
    tasks = tuple(_task(name, runs, closing, answer or attrgetter("answer")) for name, runs in sorted(by_task.items()))
    return Runs(tasks, "logged" if counted else "text", len(records) - len(known))


def closing_actions(trajectories: Iterable[Trajectory]) -> frozenset[str]:
    """Return the actions by which the agent itself ends its runs, such as a command that submits the result.

    These are the actions that end at least `LEAST_ENDINGS` of the runs and are followed by another step in none. A run
    that a limit cut off ends by any other action.
    """
    last: Counter[str] = Counter()
    earlier: set[str] = set()
    total = 0
    for trajectory in trajectories:
        total += 1
        if trajectory.steps:
            earlier.update(step.action for step in trajectory.steps[:-1])
            last[trajectory.steps[-1].action] += 1
    least = max(2, LEAST_ENDINGS * total)
    return frozenset(action for action, count in last.items() if count >= least and action not in earlier)


def ended_by_itself(trajectory: Trajectory, closing: frozenset[str]) -> bool:
    """Whether the agent ended a run: by its answer, which no observation follows, or by a closing action."""
    last = trajectory.steps[-1] if trajectory.steps else None
    return last is not None and (not last.observation or last.action in closing)


@dataclass(frozen=True)
class _Logged:
    trajectory: Trajectory
    tokens: float
    cost: float
    seconds: float


def _logged(record: LoggedTrajectory) -> _Logged:
    origin = json.loads(record.settings).get("imported") or {}
    return _Logged(
        record.trajectory,
        _number(origin, "tokens"),
        _number(origin, "cost"),
        _seconds(str(origin.get("started", "")), str(origin.get("ended", ""))),
    )


def _number(origin: Mapping[str, Any], name: str) -> float:
    value = origin.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _seconds(started: str, ended: str) -> float:
    """Return the time between two moments as logs write them; NaN without both."""
    try:
        first, last = (datetime.fromisoformat(moment) for moment in (started, ended))
        return (last - first).total_seconds()
    except (TypeError, ValueError):  # a moment with a time zone and one without cannot be compared either
        return math.nan


def _task(name: str, runs: Sequence[_Logged], closing: frozenset[str], answer: AnswerOf) -> TaskRuns:
    trajectories = tuple(run.trajectory for run in runs)

    def array(values: Iterator[float]) -> FloatArray:
        return np.array(list(values), dtype=np.float64)

    return TaskRuns(
        name,
        trajectories,
        success=array(trajectory.return_ for trajectory in trajectories),
        steps=array(float(len(trajectory.steps)) for trajectory in trajectories),
        tokens=array(run.tokens for run in runs),
        cost=array(run.cost for run in runs),
        seconds=array(run.seconds for run in runs),
        by_itself=np.array([ended_by_itself(trajectory, closing) for trajectory in trajectories], dtype=np.bool_),
        answers=tuple(map(answer, trajectories)),
    )
