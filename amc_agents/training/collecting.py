"""policy x world x tasks -> a dataset of trajectories; an interrupted collection goes on where it was.

Trajectories come from runs of `amc` itself, with no resampling: so a critic is trained on exactly the text that it
will be asked about.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.config import Config
from amc_agents.errors import CheckpointError, ConfigurationError, PopulationError
from amc_agents.population.graph import amc
from amc_agents.smc import Never
from amc_agents.training.dataset import LoggedTrajectory, collected_tasks, pyarrow_or_error, write_new_tasks
from amc_agents.types import Environment, Task, Trajectory

Rollouts = Callable[[Task, int], Awaitable[Sequence[Trajectory]]]
"""(task, seed) -> finished trajectories of the task, drawn independently from the policy."""


class CollectionProgress(NamedTuple):
    """What a progress callback gets after each task."""

    tasks: int
    """Tasks collected, those of earlier calls included."""
    of: int
    trajectories: int
    """Trajectories collected by this call."""
    mean_return: float
    """Mean return of the task just finished."""


def collect(
    agent: Any,
    tasks: Sequence[Task],
    environment: Callable[[], Environment],
    n_trajectories: int,
    out: str | Path,
    *,
    horizon: int = 50,
    policy: str = "",
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    n_concurrent: int = 8,
    inputs: Callable[[Task], Mapping[str, Any]] | None = None,
    progress: Callable[[CollectionProgress], None] | None = None,
    **options: Any,
) -> int:
    """Collects `n_trajectories` of each task with an agent; tasks already in `out` are left out.

    Args:
        agent: a compiled graph, as `amc` wraps it.
        tasks: what to do; ids must differ.
        environment: makes a fresh world.
        n_trajectories: trajectories of each task.
        out: the dataset's folder.
        horizon: the most steps of a trajectory.
        policy: the policy's name, for the record.
        settings: how it samples (temperature, ...), for the record; other settings than the dataset's are refused.
        seed: each task's run is seeded from this and the task's id.
        n_concurrent: tasks that run at the same time.
        inputs: the agent's input for a task; None: the instruction as a user message.
        progress: called after each task.
        **options: passed on to `amc`.

    Returns:
        The number of new trajectories. A particle that failed is left out of the data.

    Raises:
        CheckpointError: `out` holds trajectories of other settings.
        MissingExtra: pyarrow is not installed; nothing is played then.
    """
    rollouts = amc_rollouts(agent, environment, n_trajectories, horizon=horizon, inputs=inputs, **options)
    recorded = {"horizon": horizon, "n_trajectories": n_trajectories, "seed": seed, **(settings or {})}
    return asyncio.run(
        collect_from(
            rollouts, tasks, out, policy=policy, settings=recorded, seed=seed, n_concurrent=n_concurrent,
            progress=progress,
        )
    )  # fmt: skip


def amc_rollouts(
    agent: Any,
    environment: Callable[[], Environment],
    n_trajectories: int,
    *,
    horizon: int = 50,
    inputs: Callable[[Task], Mapping[str, Any]] | None = None,
    **options: Any,
) -> Rollouts:
    """Trajectories from `amc` with no resampling (so they are independent draws); arguments as in `collect`."""

    async def rollouts(task: Task, seed: int) -> list[Trajectory]:
        graph = amc(
            agent, critic="uniform", n_particles=n_trajectories, resample=Never(), horizon=horizon, seed=seed,
            environment=lambda state: (environment(), task), config=Config(), **options,
        )  # fmt: skip
        given = inputs(task) if inputs else {"messages": [("user", task.instruction)]}
        run = await graph.arun(given)
        failed = run.population.failed or (False,) * len(run.population.trajectories)
        return [one for one, lost in zip(run.population.trajectories, failed, strict=True) if not lost]

    return rollouts


async def collect_from(
    rollouts: Rollouts,
    tasks: Sequence[Task],
    out: str | Path,
    *,
    policy: str = "",
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    n_concurrent: int = 8,
    shard_tasks: int = 32,
    progress: Callable[[CollectionProgress], None] | None = None,
) -> int:
    """`collect` from any source of trajectories.

    `rollouts` plays a task; an interruption that cannot be caught loses at most the `shard_tasks` tasks of one
    shard. The rest is as in `collect`.
    """
    pyarrow_or_error()  # before anything is played that could then not be written
    recorded = json.dumps(settings or {}, sort_keys=True)
    known = _known_tasks(out, recorded)
    ids = [task.id for task in tasks]
    if len(set(ids)) != len(ids):
        raise ConfigurationError(f"{len(ids)} tasks have {len(set(ids))} different ids; they must differ")
    todo = [task for task in tasks if task.id not in known]
    waiting: list[list[LoggedTrajectory]] = []
    finished_tasks = collected = 0

    def flush() -> None:
        if waiting:
            write_new_tasks(out, [record for records in waiting for record in records])
            waiting.clear()

    async def play(task: Task) -> None:
        nonlocal finished_tasks, collected
        task_seed = _task_seed(seed, task)
        trajectories = [one for one in await rollouts(task, task_seed) if one.done]
        if not trajectories:
            raise PopulationError(f"task {task.id!r} gave no finished trajectory: raise the horizon, or mend the agent")
        waiting.append(
            [LoggedTrajectory(one, group, policy, task_seed, recorded) for group, one in enumerate(trajectories)]
        )
        finished_tasks, collected = finished_tasks + 1, collected + len(trajectories)
        if len(waiting) >= shard_tasks:
            flush()
        if progress is not None:
            mean = float(np.mean([one.return_ for one in trajectories]))
            progress(CollectionProgress(len(tasks) - len(todo) + finished_tasks, len(tasks), collected, mean))

    try:
        await side_by_side(*map(play, todo), limit=n_concurrent)
    finally:
        flush()
    return collected


def _known_tasks(out: str | Path, settings: str) -> set[str]:
    known = collected_tasks(out)
    other = next((one for _, one in known if one != settings), None)
    if other is not None:
        raise CheckpointError(
            f"{out} holds trajectories collected with {other}, and this collection asks for {settings}: "
            "use another folder, or the same settings"
        )
    return {task for task, _ in known}


def _task_seed(seed: int, task: Task) -> int:
    words = np.random.SeedSequence([seed, zlib.crc32(task.id.encode())]).generate_state(2)
    return int(words[0]) << 16 | int(words[1]) >> 16
