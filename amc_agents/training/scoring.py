"""Score all states of a dataset, for calibration, tuning and inspection.

A value model in this process reads each trajectory once and computes the values of all its states
(`ScoringCritic.state_values`): T + 1 states for the price of the longest. Other critics score state by state.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.background import run_in_background
from amc_agents.critics.adapting import checked_values, connect
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.local import ScoringCritic
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.training.dataset import LoggedTrajectory, dataset_hash, iter_records, selected
from amc_agents.training.ranking import RankingReport, ranking
from amc_agents.training.score_file import ScoredTrajectory, ScoreFile, ScoringPlan, scored_values, scoring_plan
from amc_agents.training.value.targets import returns_to_come
from amc_agents.types import Critic, FloatArray, Trajectory

Evaluated = tuple[int, list[LoggedTrajectory], list[FloatArray]]
"""Number of a part, its records, and the values of each record's states."""
Evaluate = Callable[[Iterable[tuple[int, list[LoggedTrajectory]]]], Iterator[Evaluated]]
"""Scores parts of a dataset, in their order."""


class ScoringProgress(NamedTuple):
    """Progress of a scoring, reported after each part; parts of an earlier call are reported at once."""

    trajectories: int
    """Trajectories scored so far."""
    n_trajectories: int
    """All trajectories."""
    states_per_second: float
    """Rate of this call; 0 before its first part."""
    seconds_left: float | None
    """Estimate from this call's rate; None before its first part."""


def score(
    critic: str | Critic,
    data: str | Path,
    out: str | Path,
    *,
    per_part: int = 256,
    progress: Callable[[ScoringProgress], None] | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Write the values of every state of a dataset to a Parquet file.

    Columns: task_id, group, policy, return, values `[T + 1]` in reward units, targets `[T + 1]` (the observed return
    to come or whole return, depending on the critic's prediction; null if it is unknown). At most `per_part`
    trajectories are in memory. An interrupted call resumes, and a finished call does nothing.

    Args:
        critic: a critic or its string. `hf:` and `embedded:` read each trajectory in one pass. Other critics score the
            states of a few trajectories in order, so that a server's prefix cache holds all but the newest step.
        data: folder that `amc collect` wrote.
        out: path of the file.
        per_part: trajectories that are scored and written together.
        progress: called after each part.
        evaluate: computes the values elsewhere; None: in this process.

    Raises:
        ConfigurationError: the critic does not value trajectories, or `out` contains values of another critic or
            dataset.
        CheckpointError: the dataset does not exist or changed meanwhile, or the critic's golden scores are not
            reproduced.
        CriticError: the critic failed.
    """
    if per_part < 1:
        raise ConfigurationError(f"per_part is {per_part}: expected at least 1")
    built = value_critic(critic)
    count = sum(map(sum, selected(data).values()))
    plan = ScoringPlan(
        critic=critic if isinstance(critic, str) else type(critic).__name__,
        checkpoint=_fingerprint(built),
        predicts=getattr(built, "predicts", "future"),
        beta=getattr(built, "beta", None),
        data=dataset_hash(data),
        per_part=per_part,
    )
    file = ScoreFile(out, plan)
    pace = _Pace(count, progress)
    if file.finished:
        pace.skip(count)
        return
    parts = 0

    def missing() -> Iterator[tuple[int, list[LoggedTrajectory]]]:
        nonlocal parts
        for number, records in enumerate(_parts(iter_records(data), per_part)):
            parts = number + 1
            if file.has(number):
                pace.skip(len(records))
            else:
                yield number, records

    for number, records, values in (evaluate or partial(_evaluated, built))(missing()):
        file.write(number, [_scored(*pair, plan.predicts) for pair in zip(records, values, strict=True)])
        pace.add(len(records), sum(map(len, values)))
    if pace.trajectories != count:
        raise CheckpointError(
            f"{data} had {count} trajectories, but {pace.trajectories} were read: it changed meanwhile; start again "
            "when it is complete"
        )
    file.finish(parts)


def score_ranking(scores: str | Path, data: str | Path) -> RankingReport:
    """Measure whether the values of a score file rank siblings; see `ranking`.

    Args:
        scores: a file that `score` wrote.
        data: the dataset that it was written for.

    Raises:
        CheckpointError: the file is not a score file, or belongs to another dataset.
    """
    plan = scoring_plan(scores)
    if plan.data != dataset_hash(data):
        raise CheckpointError(f"{scores} has the values of another dataset than {data}: score it again")
    trajectories = (record.trajectory for record in iter_records(data))
    return ranking(zip(trajectories, scored_values(scores), strict=True), predicts=plan.predicts)


def _evaluated(critic: Critic, parts: Iterable[tuple[int, list[LoggedTrajectory]]]) -> Iterator[Evaluated]:
    for number, records in parts:
        yield number, records, state_values(critic, [record.trajectory for record in records])


def state_values(critic: Critic, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    """Compute `[T + 1]` values of all states of each trajectory, in reward units; in one pass if the critic can."""
    if isinstance(critic, ScoringCritic):
        return critic.state_values(trajectories)
    return run_in_background(_state_by_state(critic, trajectories), n_workers=1)


async def _state_by_state(critic: Critic, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    values_of_all: list[FloatArray] = []
    for start in range(0, len(trajectories), _ABREAST):
        abreast = trajectories[start : start + _ABREAST]
        values = [np.empty(len(trajectory.steps) + 1) for trajectory in abreast]
        for state in range(max(map(len, values))):
            unfinished = [index for index, each in enumerate(values) if state < len(each)]
            answer = await critic.values([abreast[index].prefix(state) for index in unfinished])
            checked = checked_values(answer, len(unfinished), type(critic).__name__)
            for index, value in zip(unfinished, checked, strict=True):
                values[index][state] = value
        values_of_all += values
    return values_of_all


def value_critic(critic: str | Critic) -> Critic:
    """Build the critic and connect it to its server, which tells what it predicts."""
    built = parse_critic(critic)
    if not isinstance(built, Critic):
        raise ConfigurationError(
            f"{type(built).__name__} does not value trajectories: use a value model (hf:, embedded:, vllm:), a "
            "judge, or an object with `values`"
        )
    run_in_background(connect(built), n_workers=1)
    return built


def _fingerprint(critic: Critic) -> str:
    checkpoint: ValueCheckpoint | None = getattr(critic, "checkpoint", None)
    # The golden scores and the calibration are included: equal checkpoints give equal values.
    return "" if checkpoint is None else hashlib.sha256(repr(checkpoint).encode()).hexdigest()


def _parts(records: Iterable[LoggedTrajectory], size: int) -> Iterator[list[LoggedTrajectory]]:
    waiting = iter(records)
    while part := list(itertools.islice(waiting, size)):
        yield part


def _scored(record: LoggedTrajectory, values: FloatArray, predicts: str) -> ScoredTrajectory:
    trajectory = record.trajectory
    whole = trajectory.return_
    targets = returns_to_come(trajectory) if predicts == "future" else np.full(len(values), whole)
    observed = trajectory.done and record.outcome_known
    return ScoredTrajectory(
        trajectory.task.id, record.group, record.policy, whole, values, targets if observed else None
    )


class _Pace:
    """Count finished trajectories and report the progress."""

    def __init__(self, n_trajectories: int, report: Callable[[ScoringProgress], None] | None) -> None:
        self.trajectories = 0
        self._n_trajectories, self._progress = n_trajectories, report
        self._scored = self._states = 0
        self._start = time.perf_counter()

    def skip(self, trajectories: int) -> None:
        """Count a part of an earlier call."""
        self.trajectories += trajectories
        self._start = time.perf_counter()
        self._report()

    def add(self, trajectories: int, states: int) -> None:
        """Count a part of this call."""
        self.trajectories += trajectories
        self._scored += trajectories
        self._states += states
        self._report()

    def _report(self) -> None:
        if self._progress is None:
            return
        seconds = time.perf_counter() - self._start
        left = seconds / self._scored * (self._n_trajectories - self.trajectories) if self._scored else None
        rate = self._states / seconds if self._scored else 0.0
        self._progress(ScoringProgress(self.trajectories, self._n_trajectories, rate, left))


_ABREAST = 32
"""Trajectories scored together: few enough for a server's prefix cache, enough to fill a batch."""
