"""Collect a dataset of trajectories: policy x world x tasks. An interrupted collection resumes.

Trajectories come from runs of `amc` without resampling, so that a critic is trained on exactly the text that it will
score.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.config import Config
from amc_agents.errors import CheckpointError, ConfigurationError, PopulationError
from amc_agents.population.conclusion import counted_notes
from amc_agents.population.wrap import amc
from amc_agents.quoting import quoted
from amc_agents.runtime import contract
from amc_agents.runtime.effects import attempts_of
from amc_agents.settings import AmcSettings
from amc_agents.smc import Never
from amc_agents.training.dataset import (
    LoggedTrajectory,
    collected_tasks,
    commit_names,
    pyarrow_or_error,
    refuse_credentials,
    write_new_tasks,
)
from amc_agents.types import Environment, Task, Trajectory

Rollouts = Callable[[Task, int], Awaitable[Sequence[Trajectory]]]
"""(task, seed) -> finished trajectories of the task, drawn independently from the policy."""


class CollectionProgress(NamedTuple):
    """Progress of a collection, reported after each task."""

    tasks: int
    """Tasks collected, including earlier calls."""
    of: int
    """All tasks."""
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
    commit_tools: str | Sequence[str] = (),
    play: Rollouts | None = None,
    progress: Callable[[CollectionProgress], None] | None = None,
    **options: Any,
) -> int:
    """Collect `n_trajectories` of each task with an agent; skip tasks that are already in `out`.

    Args:
        agent: a compiled graph, as `amc` wraps it.
        tasks: the tasks; their ids must differ.
        environment: makes a fresh world.
        n_trajectories: trajectories per task.
        out: folder of the dataset.
        horizon: maximum number of steps of a trajectory.
        policy: name of the policy, stored with each trajectory.
        settings: sampling settings (temperature, ...), stored with each trajectory; must equal those of the dataset.
        seed: the seed of a task's run is derived from this and the task's id.
        n_concurrent: maximum number of concurrent tasks.
        inputs: task -> input of the agent; None: the instruction as a user message.
        commit_tools: names of the tools that are commits at run time. Here each trajectory calls them in its own world,
            and nothing waits. They are stored with each trajectory, so that value models also learn from the
            states in which such a call was pending.
        play: draws the trajectories of a task elsewhere, such as on a cluster, with the same agent; None: here.
        progress: called after each task.
        **options: passed to `amc`.

    Returns:
        The number of new trajectories. Failed particles are not stored.

    Raises:
        CheckpointError: `out` contains trajectories with other settings.
        ConfigurationError: the agent has a commit tool that `commit_tools` does not name, or `policy` or `settings`
            contain a URL with credentials.
        MissingExtra: pyarrow is not installed. Raised before any task is played.
    """
    commits = commit_names(commit_tools)
    options["tools"] = {**options.get("tools", {}), **dict.fromkeys(commits, "world")}
    rollouts = amc_rollouts(
        agent, environment, n_trajectories, horizon=horizon, inputs=inputs, **options,
    )  # fmt: skip
    recorded = {"horizon": horizon, "n_trajectories": n_trajectories, "seed": seed, **(settings or {})}
    if commits:
        recorded["commit_tools"] = list(commits)
    with counted_notes():
        return asyncio.run(
            collect_from(
                play or rollouts, tasks, out, policy=policy, settings=recorded, seed=seed, n_concurrent=n_concurrent,
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
    """Draw trajectories by `amc`, without resampling. The arguments are those of `collect`.

    Raises:
        ConfigurationError: the agent has a commit tool, at which the trajectories would wait for each other, and all
            would go on from one of them.
    """
    _refuse_commits(agent, options)

    async def rollouts(task: Task, seed: int) -> list[Trajectory]:
        return await independent_trajectories(
            agent, inputs(task) if inputs else {"messages": [("user", task.instruction)]}, n_trajectories,
            horizon=horizon, seed=seed, environment=lambda state: (environment(), task), **options,
        )  # fmt: skip

    return rollouts


async def independent_trajectories(
    agent: Any,
    given: Mapping[str, Any],
    n_trajectories: int,
    *,
    horizon: int,
    seed: int,
    **options: Any,
) -> list[Trajectory]:
    """Run an agent N times by `amc` without resampling, and return the trajectories of the particles that did not fail.

    Args:
        agent: a compiled graph.
        given: its input.
        n_trajectories: N.
        horizon: maximum number of steps.
        seed: seed of the run.
        **options: other arguments of `amc`.
    """
    settings = replace(options.pop("settings", AmcSettings()), config=Config())
    graph = amc(
        agent, critic="uniform", settings=settings, n_particles=n_trajectories, resample=Never(), horizon=horizon,
        seed=seed, **options,
    )  # fmt: skip
    run = await graph.arun(given)
    await run.aclose()
    trajectories = run.population.trajectories
    failures = run.population.failed or (False,) * len(trajectories)
    return [trajectory for trajectory, failed in zip(trajectories, failures, strict=True) if not failed]


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
    failed: Callable[[Task, Exception], None] | None = None,
) -> int:
    """Collect from any source of trajectories.

    `rollouts` plays a task. A shard has `shard_tasks` tasks, which are lost if the process is killed. `failed` is
    called with a task that failed, and the collection goes on; None: the error ends it. The other arguments are those
    of `collect`.
    """
    pyarrow_or_error()  # fails before anything is played
    refuse_credentials(policy, settings)
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

    async def finished_by(task: Task, task_seed: int) -> list[Trajectory]:
        trajectories = [trajectory for trajectory in await rollouts(task, task_seed) if trajectory.done]
        if not trajectories:
            raise PopulationError(
                f"task {quoted(task.id)} has no finished trajectory: raise the horizon, or fix the agent"
            )
        return trajectories

    async def play(task: Task) -> None:
        nonlocal finished_tasks, collected
        task_seed = _task_seed(seed, task)
        try:
            trajectories = await finished_by(task, task_seed)
        except Exception as error:
            if failed is None:
                raise
            failed(task, error)
            return
        waiting.append(
            [
                LoggedTrajectory(trajectory, group, policy, task_seed, recorded)
                for group, trajectory in enumerate(trajectories)
            ]
        )
        finished_tasks, collected = finished_tasks + 1, collected + len(trajectories)
        if len(waiting) >= shard_tasks:
            flush()
        if progress is not None:
            mean = float(np.mean([trajectory.return_ for trajectory in trajectories]))
            progress(CollectionProgress(len(tasks) - len(todo) + finished_tasks, len(tasks), collected, mean))

    try:
        await side_by_side(*map(play, todo), limit=n_concurrent)
    finally:
        flush()
    return collected


def _refuse_commits(agent: Any, options: Mapping[str, Any]) -> None:
    effects = contract.check_effects(
        agent, contract.pausing_nodes(agent, options.get("step_after")), options.get("tools") or {},
        stateless_tools=True, has_world=True,
    )  # fmt: skip
    names = sorted({name for name, kind in effects.tools.items() if attempts_of(kind)} | effects.commit_nodes.keys())
    if names:
        raise ConfigurationError(
            f"a commit is made once for all particles, so the trajectories of a collection would not be independent: "
            f"give commit_tools={names}, so that each trajectory makes the call in its own world"
        )


def _known_tasks(out: str | Path, settings: str) -> set[str]:
    known = collected_tasks(out)
    other = next((collected_with for _, collected_with in known if collected_with != settings), None)
    if other is not None:
        raise CheckpointError(
            f"{out} contains trajectories collected with {other}, but this collection has {settings}: "
            "use another folder, or the same settings"
        )
    return {task for task, _ in known}


def _task_seed(seed: int, task: Task) -> int:
    words = np.random.SeedSequence([seed, zlib.crc32(task.id.encode())]).generate_state(2)
    return int(words[0]) << 16 | int(words[1]) >> 16
