"""An exploration: agents x trials, each with a hidden instance that stays the same over the episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from amc_agents.bench.engine import CountCallback, Execute, run_job
from amc_agents.bench.results_folder import ResultsFolder, WorkItem, read_results
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_exploration.comparison.agents import Explorer
from amc_agents_exploration.comparison.trials import Trial, play_trial
from amc_agents_exploration.worlds import Instance


@dataclass(frozen=True)
class Exploration:
    """A job for `amc_agents.bench.engine`: explorers, a world and its episodes, as plain values."""

    world: str
    """A name that `amc_agents.envs.registry.world` accepts."""
    explorers: tuple[Explorer, ...]
    n_trials: int
    """Number of trials of each explorer. Every trial has its own hidden instance, the same for all explorers."""
    n_episodes: int
    """K, the number of episodes of each trial."""
    first: int = 0
    """Number of the first hidden instance of the split."""
    split: str = "test"
    seed: int = 0
    """Seed of the agents' random draws. The world's outcomes do not depend on it."""
    command: str = "amc explore"

    def __post_init__(self) -> None:
        """Validate the exploration."""
        names = [explorer.name for explorer in self.explorers]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(f"expected one agent or more, each once, got {', '.join(names) or 'none'}")
        if self.n_trials < 1 or self.n_episodes < 1:
            raise ConfigurationError(
                f"expected 1 trial and 1 episode or more, got {self.n_trials} and {self.n_episodes}"
            )
        task = next(iter(self.world_spec.tasks(1, self.split, self.first)))
        if not isinstance(task.payload, Instance):
            raise ConfigurationError(
                f"the world {self.world} has no hidden instances that stay the same over episodes: choose a world of "
                "amc_agents_exploration.worlds"
            )
        for explorer in self.explorers:
            explorer.make(task, 0, n_episodes=self.n_episodes, horizon=self.world_spec.horizon)

    @property
    def world_spec(self) -> WorldSpec:
        """The registered world."""
        return world(self.world)

    def tasks(self) -> list[Task]:
        """Return the tasks, one for each trial."""
        return list(self.world_spec.tasks(self.n_trials, self.split, self.first))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all trials share, as plain values. Their number is left out, because it may grow."""
        return {
            "world": self.world,
            "instances": _fingerprint(self.world_spec, self.split),
            "split": self.split,
            "n_episodes": self.n_episodes,
            "horizon": self.world_spec.horizon,
        }

    @property
    def explorer_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each explorer, by name."""
        return {
            explorer.name: {"agent": explorer.agent, "temperature": explorer.temperature} for explorer in self.explorers
        }

    def prepare(self) -> Exploration:
        """Return the exploration itself: trials load what they need."""
        return self

    def items(self) -> list[WorkItem]:
        """Return every trial, in an order in which an interruption leaves all explorers with the same instances."""
        return [WorkItem(explorer.name, task.id, self.seed) for task, explorer in product(self.tasks(), self.explorers)]

    def folder(self, out: str | Path, *, resume: bool, worker: str = "") -> ResultsFolder:
        """Return the results folder, checked against these settings."""
        return ResultsFolder(out, self.settings, self.explorer_settings, resume=resume, worker=worker)

    def parse(self, values: Mapping[str, Any]) -> Trial:
        """Read a stored trial."""
        return Trial.from_json(values)

    @contextmanager
    def executor(self, out: str | Path, worker: str) -> Iterator[Execute]:
        """Return the function that plays a trial."""
        spec = self.world_spec
        tasks = {task.id: task for task in self.tasks()}
        explorers = {explorer.name: explorer for explorer in self.explorers}

        async def execute(item: WorkItem) -> Trial:
            return await play_trial(spec, tasks[item.task], explorers[item.name], item.seed, self.n_episodes)

        yield execute

    def kept(self, out: str | Path) -> list[Trial]:
        """Return the exploration's trials in a folder, explorer by explorer, in the order of the tasks."""
        by_key = {trial.key: trial for trial in read_results(out, Trial.from_json)}
        keys = [(explorer.name, task.id, self.seed) for explorer, task in product(self.explorers, self.tasks())]
        return [by_key[key] for key in keys if key in by_key]


def explore(
    exploration: Exploration,
    out: str | Path,
    *,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
) -> list[Trial]:
    """Play every trial that `out` has no result of.

    Args:
        exploration: what to play.
        out: the results folder.
        resume: continue with the results in `out`.
        n_workers: number of processes; each plays its share of the instances.
        n_concurrent: trials in progress at the same time in each process, which helps agents that wait for models.
        progress: called with the number of stored trials, from time to time.

    Returns:
        All trials of the exploration, including those of earlier calls, explorer by explorer.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results with other settings, or another run
            is using it.
        AmcError: a worker process failed; finished trials are kept.
    """
    run_job(exploration, out, resume=resume, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress)
    return exploration.kept(out)


def _fingerprint(spec: WorldSpec, split: str) -> str:
    """Distinguish instances that have the same ids, such as those of another word list."""
    task = next(iter(spec.tasks(1, split, 0)))
    return hashlib.sha256(repr((task.instruction, task.payload)).encode()).hexdigest()[:16]
