"""Runs explorers x trials, each kept as it ends, in one process or several."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amc_agents.bench.exploration.agents import Explorer
from amc_agents.bench.exploration.trials import Trial, play_trial
from amc_agents.bench.records import ResultsFolder, read_results, sole_run
from amc_agents.bench.workers import end_with_parent
from amc_agents.concurrency.background import run_in_background
from amc_agents.envs.exploration import Instance
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.types import Task

Progress = Callable[[int], None]
"""Called with the number of the exploration's trials that are kept so far, from time to time."""


@dataclass(frozen=True)
class Exploration:
    """What is played: a worker process is given this."""

    world: str
    """Its name, as `amc_agents.envs.registry.world` takes it."""
    explorers: tuple[Explorer, ...]
    n_trials: int
    """Of each explorer; every trial has a hidden instance of its own, the same one for all explorers."""
    n_episodes: int
    """K, of each trial."""
    first: int = 0
    """Number of the first hidden instance of the split."""
    split: str = "test"
    seed: int = 0
    """Of the agents' luck."""

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        names = [one.name for one in self.explorers]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(f"expected one agent or more, each once, got {', '.join(names) or 'none'}")
        if self.n_trials < 1 or self.n_episodes < 1:
            raise ConfigurationError(
                f"expected 1 trial and 1 episode or more, got {self.n_trials} and {self.n_episodes}"
            )
        task = next(iter(self.world_spec.tasks(1, self.split, self.first)))
        if not isinstance(task.payload, Instance):
            raise ConfigurationError(
                f"the world {self.world} has no hidden instances that stay the same over episodes: explore those of "
                "amc_agents.envs.exploration"
            )
        for one in self.explorers:
            one.make(task, 0, n_episodes=self.n_episodes, horizon=self.world_spec.horizon)

    @property
    def world_spec(self) -> WorldSpec:
        """The world."""
        return world(self.world)

    def tasks(self, part: int = 0, of: int = 1) -> list[Task]:
        """One task a trial, or every `of`-th of them from number `part` on."""
        return list(self.world_spec.tasks(self.n_trials, self.split, self.first))[part::of]

    @property
    def settings(self) -> dict[str, Any]:
        """What all trials share, as plain values; how many they are may grow."""
        return {
            "world": self.world,
            "instances": _fingerprint(self.world_spec, self.split),
            "split": self.split,
            "n_episodes": self.n_episodes,
            "horizon": self.world_spec.horizon,
        }

    @property
    def explorer_settings(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {one.name: {"agent": one.agent, "temperature": one.temperature} for one in self.explorers}

    def folder(self, out: str | Path, *, resume: bool, worker: str = "") -> ResultsFolder:
        """The results folder, checked against these settings."""
        return ResultsFolder(out, self.settings, self.explorer_settings, resume=resume, worker=worker)

    def kept(self, out: str | Path) -> list[Trial]:
        """The trials of a folder that belong to this exploration, explorer by explorer, in the order of the tasks."""
        found = {trial.key: trial for trial in read_results(out, Trial.from_json)}
        keys = [(one.name, task.id, self.seed) for one in self.explorers for task in self.tasks()]
        return [found[key] for key in keys if key in found]


def explore(
    exploration: Exploration,
    out: str | Path,
    *,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: Progress | None = None,
) -> list[Trial]:
    """Every trial that `out` does not hold yet.

    Args:
        exploration: what to play.
        out: the results folder.
        resume: go on with what `out` holds.
        n_workers: processes; each plays its share of the instances.
        n_concurrent: trials at the same time in each process, which pays where agents wait for models.
        progress: called when there is something new.

    Returns:
        The exploration's trials, those of earlier calls included.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results of other settings; or another run
            is using it.
        AmcError: a worker failed; what was finished is kept.
    """
    with sole_run(out, doing="amc explore"):
        return _explore(exploration, out, resume, n_workers, n_concurrent, progress)


def _explore(
    exploration: Exploration,
    out: str | Path,
    resume: bool,
    n_workers: int,
    n_concurrent: int,
    progress: Progress | None,
) -> list[Trial]:
    exploration.folder(out, resume=resume)
    n_workers = min(n_workers, exploration.n_trials)

    if n_workers == 1:
        # On the loop that stays: a model's connections belong to one loop.
        run_in_background(_play(exploration, out, 0, 1, n_concurrent, progress), n_workers=n_concurrent)
        return exploration.kept(out)
    # Spawned, not forked: the parent may have threads (of BLAS, of an event loop).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, initializer=end_with_parent) as pool:
        working = [
            pool.submit(_work, exploration, str(out), part, n_workers, n_concurrent) for part in range(n_workers)
        ]
        while not all(one.done() for one in working):
            time.sleep(0.5)
            if progress is not None:
                progress(len(exploration.kept(out)))
    for one in working:
        told = one.result()
        if told is not None:
            raise AmcError(f"a worker failed, and what was finished is kept: {told}")
    return exploration.kept(out)


def _work(exploration: Exploration, out: str, part: int, of: int, n_concurrent: int) -> str | None:
    """One process's share; the sentence of an error of ours, for not all of them can be sent between processes."""
    try:
        asyncio.run(_play(exploration, out, part, of, n_concurrent))
    except AmcError as error:
        return f"{type(error).__name__}: {error}"
    return None


async def _play(
    exploration: Exploration, out: str | Path, part: int, of: int, n_concurrent: int, progress: Progress | None = None
) -> None:
    done = {trial.key for trial in exploration.kept(out)}
    limit, found = asyncio.Semaphore(n_concurrent), exploration.world_spec
    worker = f"{part}-of-{of}" if of > 1 else ""
    with exploration.folder(out, resume=True, worker=worker) as folder:

        async def play(task: Task, explorer: Explorer) -> None:
            async with limit:
                await asyncio.sleep(0)  # Agents that never wait would leave no moment for an error to stop the others.
                trial = await play_trial(found, task, explorer, exploration.seed, exploration.n_episodes)
            folder.add(trial)
            done.add(trial.key)
            if progress is not None:
                progress(len(done))

        # Task by task, so that an interruption leaves all explorers with the same instances.
        todo = [(task, one) for task in exploration.tasks(part, of) for one in exploration.explorers]
        running = [
            asyncio.create_task(play(task, one))
            for task, one in todo
            if (one.name, task.id, exploration.seed) not in done
        ]
        try:
            await asyncio.gather(*running)
        finally:
            for waiting in running:
                waiting.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _fingerprint(found: WorldSpec, split: str) -> str:
    """Tells other instances under the same names, such as those of another word list."""
    task = next(iter(found.tasks(1, split, 0)))
    return hashlib.sha256(repr((task.instruction, task.payload)).encode()).hexdigest()[:16]
