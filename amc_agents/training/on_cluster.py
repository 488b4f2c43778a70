"""Collect and score on a Ray cluster: tasks are played, and parts are scored, in its processes.

The dataset and the score file are written by this process alone, as without a cluster.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from amc_agents.concurrency.background import background_loop, run_in_background
from amc_agents.concurrency.ray_cluster import RayCluster
from amc_agents.training.collecting import Rollouts
from amc_agents.training.dataset import LoggedTrajectory
from amc_agents.training.scoring import Evaluated, state_values, value_critic
from amc_agents.types import Critic, FloatArray, Task, Trajectory


def remote_rollouts(cluster: RayCluster, make: Callable[[], Rollouts]) -> Rollouts:
    """Return rollouts that play each task on a cluster.

    Args:
        cluster: where to play.
        make: makes the rollouts in a process of the cluster; picklable.
    """
    pickled = pickle.dumps(make)

    async def rollouts(task: Task, seed: int) -> Sequence[Trajectory]:
        trajectories: Sequence[Trajectory] = await cluster.call(_play_there, pickled, task, seed)
        return trajectories

    return rollouts


def remote_values(
    cluster: RayCluster, critic: str, parts: Iterable[tuple[int, list[LoggedTrajectory]]]
) -> Iterator[Evaluated]:
    """Score parts of a dataset on a cluster, some ahead of the part that is read.

    Args:
        cluster: where to score.
        critic: the critic's string; each process of the cluster builds it once.
        parts: number and records of each part.

    Yields:
        Number, records and values of each part, in their order.
    """
    ahead = 2 * cluster.n_cpus
    waiting: deque[tuple[int, list[LoggedTrajectory], Any]] = deque()
    try:
        for number, records in parts:
            call = cluster.call(_score_there, critic, [record.trajectory for record in records])
            waiting.append((number, records, asyncio.run_coroutine_threadsafe(call, background_loop(1))))
            if len(waiting) > ahead:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        for _, _, future in waiting:
            future.cancel()


def _first(waiting: deque[tuple[int, list[LoggedTrajectory], Any]]) -> Evaluated:
    number, records, future = waiting.popleft()
    return number, records, future.result()


def _play_there(make: bytes, task: Task, seed: int) -> Sequence[Trajectory]:
    return run_in_background(_awaited(_made(make), task, seed), n_workers=8)


async def _awaited(rollouts: Rollouts, task: Task, seed: int) -> Sequence[Trajectory]:
    return await rollouts(task, seed)


@lru_cache(maxsize=2)
def _made(make: bytes) -> Rollouts:
    rollouts: Rollouts = pickle.loads(make)()
    return rollouts


def _score_there(critic: str, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    return state_values(_critic(critic), trajectories)


@lru_cache(maxsize=2)
def _critic(critic: str) -> Critic:
    return value_critic(critic)
