"""The values of all states of a dataset: for calibration, for tuning, and to look at.

A value model in this process reads each trajectory once and gives the values of all its states
(`ScoringCritic.state_values`): T + 1 states for the price of the longest one. Any other critic is asked state by state.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.background import run_in_background
from amc_agents.critics.adapting import connect
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.validation import checked_values
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.scoring import ScoringCritic
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.training.dataset import LoggedTrajectory, dataset_hash, iter_records, selected
from amc_agents.training.score_file import ScoredTrajectory, ScoreFile, ScoringPlan
from amc_agents.training.value.objective import returns_to_come
from amc_agents.types import Critic, FloatArray, Trajectory


class ScoringProgress(NamedTuple):
    """What a progress callback gets after each part, those of an earlier call at once."""

    trajectories: int
    """Done so far."""
    n_trajectories: int
    states_per_second: float
    """Of this call; 0 before its first part."""
    seconds_left: float | None
    """At this call's pace; None before its first part."""


def score(
    critic: str | Critic,
    data: str | Path,
    out: str | Path,
    *,
    per_part: int = 256,
    progress: Callable[[ScoringProgress], None] | None = None,
) -> None:
    """Writes the values of every state of a dataset to a Parquet file.

    Columns: task_id, group, policy, return, values `[T + 1]` in reward units, targets `[T + 1]` (what came: the return
    still to come or the whole one, as the critic predicts; null where a trajectory is not done). At most `per_part`
    trajectories are in memory. An interrupted call goes on where it was, and one that has finished does nothing.

    Args:
        critic: a critic or its string. `hf:` and `embedded:` read each trajectory in one pass; any other is asked for
            one state after the other of a few trajectories side by side, so that a server's prefix cache knows all but
            the newest step.
        data: folder that `amc collect` wrote.
        out: the file.
        per_part: trajectories that are scored, and written, at a time.
        progress: called after each part.

    Raises:
        ConfigurationError: the critic gives no values of trajectories, or `out` holds those of another critic or
            dataset.
        CheckpointError: there is no dataset, or it changed meanwhile; or the critic's golden scores are not reproduced.
        CriticError: the critic failed.
    """
    if per_part < 1:
        raise ConfigurationError(f"per_part is {per_part}: expected at least 1")
    found = _with_values(critic)
    count = sum(map(sum, selected(data).values()))
    plan = ScoringPlan(
        critic=critic if isinstance(critic, str) else type(critic).__name__,
        checkpoint=_fingerprint(found),
        predicts=getattr(found, "predicts", "future"),
        beta=getattr(found, "beta", None),
        data=dataset_hash(data),
        per_part=per_part,
    )
    file = ScoreFile(out, plan)
    pace = _Pace(count, progress)
    if file.finished:
        pace.skip(count)
        return
    parts = 0
    for number, records in enumerate(_parts(iter_records(data), per_part)):
        parts = number + 1
        if file.has(number):
            pace.skip(len(records))
            continue
        values = state_values(found, [record.trajectory for record in records])
        file.write(number, [_scored(*pair, plan.predicts) for pair in zip(records, values, strict=True)])
        pace.add(len(records), sum(map(len, values)))
    if pace.trajectories != count:
        raise CheckpointError(
            f"{data} had {count} trajectories and {pace.trajectories} were read: it changed meanwhile; start again "
            "when it is complete"
        )
    file.finish(parts)


def state_values(critic: Critic, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    """`[T + 1]` values of all states of each trajectory, in reward units: by one pass where the critic can do that."""
    if isinstance(critic, ScoringCritic):
        return critic.state_values(trajectories)
    return run_in_background(_state_by_state(critic, trajectories), n_workers=1)


async def _state_by_state(critic: Critic, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    found: list[FloatArray] = []
    for start in range(0, len(trajectories), _ABREAST):
        abreast = trajectories[start : start + _ABREAST]
        values = [np.empty(len(one.steps) + 1) for one in abreast]
        for state in range(max(map(len, values))):
            there = [index for index, one in enumerate(values) if state < len(one)]
            answer = await critic.values([abreast[index].prefix(state) for index in there])
            for index, value in zip(there, checked_values(answer, len(there), type(critic).__name__), strict=True):
                values[index][state] = value
        found += values
    return found


def _with_values(critic: str | Critic) -> Critic:
    """The critic, connected where it has a server: what it predicts is known only then."""
    found = parse_critic(critic)
    if not isinstance(found, Critic):
        raise ConfigurationError(
            f"{type(found).__name__} gives no values of trajectories: use a value model (hf:, embedded:, vllm:), a "
            "judge, or an object with `values`"
        )
    run_in_background(connect(found), n_workers=1)
    return found


def _fingerprint(critic: Critic) -> str:
    checkpoint: ValueCheckpoint | None = getattr(critic, "checkpoint", None)
    # All of it, golden scores and calibration included: two that agree in that give the same values.
    return "" if checkpoint is None else hashlib.sha256(repr(checkpoint).encode()).hexdigest()


def _parts(records: Iterable[LoggedTrajectory], size: int) -> Iterator[list[LoggedTrajectory]]:
    waiting = iter(records)
    while part := list(itertools.islice(waiting, size)):
        yield part


def _scored(record: LoggedTrajectory, values: FloatArray, predicts: str) -> ScoredTrajectory:
    trajectory = record.trajectory
    whole = trajectory.return_
    came = returns_to_come(trajectory) if predicts == "future" else np.full(len(values), whole)
    return ScoredTrajectory(
        trajectory.task.id, record.group, record.policy, whole, values, came if trajectory.done else None
    )


class _Pace:
    """Counts what is done, and tells it."""

    def __init__(self, n_trajectories: int, tell: Callable[[ScoringProgress], None] | None) -> None:
        self.trajectories = 0
        self._n_trajectories, self._tell = n_trajectories, tell
        self._scored = self._states = 0
        self._begun = time.perf_counter()

    def skip(self, trajectories: int) -> None:
        """A part that an earlier call has made."""
        self.trajectories += trajectories
        self._begun = time.perf_counter()
        self._report()

    def add(self, trajectories: int, states: int) -> None:
        """A part of this call."""
        self.trajectories += trajectories
        self._scored += trajectories
        self._states += states
        self._report()

    def _report(self) -> None:
        if self._tell is None:
            return
        seconds = time.perf_counter() - self._begun
        left = seconds / self._scored * (self._n_trajectories - self.trajectories) if self._scored else None
        rate = self._states / seconds if self._scored else 0.0
        self._tell(ScoringProgress(self.trajectories, self._n_trajectories, rate, left))


_ABREAST = 32
"""Trajectories asked about side by side: few enough for a server's cache to hold them all, enough to fill a batch."""
