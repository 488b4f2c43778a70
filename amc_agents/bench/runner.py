"""Runs methods x tasks x seeds, several at a time, and keeps each result as it ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.methods import Method
from amc_agents.bench.records import Record, ResultsFolder, read_records
from amc_agents.bench.scores import cost_of, scores_of
from amc_agents.config import Config
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import ConfigurationError
from amc_agents.nodes.amc import amc
from amc_agents.smc import Never
from amc_agents.types import Critic, Environment, Run, Task

AgentFunction = Callable[[float], Any]
"""Sampling temperature -> a compiled graph."""
Progress = Callable[[Record, Run], None]
"""Called after each run."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what."""

    agent: AgentFunction
    environment: Callable[[], Environment]
    """Makes a fresh world."""
    tasks: Sequence[Task]
    methods: Sequence[Method]
    seeds: Sequence[int] = (0,)
    n_particles: int = 15
    """N of the methods that do not say otherwise."""
    critic: str | Critic = "uniform"
    """Of the methods that do not name one."""
    horizon: int = 20
    success: float = 1.0
    """Least return that counts as a success."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else decides the results (policy, weights, world), as plain values: kept with them, checked on resuming."""

    _critics: dict[str, Critic] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        named: dict[str, list[str]] = {
            "tasks": [task.id for task in self.tasks],
            "methods": [method.name for method in self.methods],
            "seeds": [str(seed) for seed in self.seeds],
        }
        for what, names in named.items():
            if not names:
                raise ConfigurationError(f"a comparison needs {what}, and there are none")
            if len(set(names)) < len(names):
                raise ConfigurationError(
                    f"{len(names)} {what}, and {len(set(names))} different names: they must differ"
                )
        for method in self.methods:
            if steered_blindly(method) and not predicts_return(self.critic_of(method)):
                raise ConfigurationError(
                    f"{method.name} hides rewards, so its critic must predict the whole return, and "
                    f"{self.critic!r} predicts what is still to come: train one with target 'return', or leave it out"
                )

    def critic_of(self, method: Method) -> Critic:
        """The critic that a method uses; the same object for all that name it alike.

        A run without rewards that is not resampled asks it about finished trajectories alone: where it predicts
        what is still to come, it has nothing to say of them, and is not asked.
        """
        critic = self._parsed(self.critic if method.critic is None else method.critic)
        at_end_only = method.hide_rewards and not steered_blindly(method)
        return self._parsed("uniform") if at_end_only and not predicts_return(critic) else critic

    def _parsed(self, critic: str | Critic) -> Critic:
        if not isinstance(critic, str):
            return critic
        if critic not in self._critics:
            self._critics[critic] = parse_critic(critic)
        return self._critics[critic]

    def size_of(self, method: Method) -> int:
        """The number of particles of a method."""
        return self.n_particles if method.n_particles is None else method.n_particles

    @property
    def settings(self) -> dict[str, Any]:
        """What all results share, as plain values."""
        critic = self._parsed(self.critic)
        return {
            **self.about,
            "critic": self.critic if isinstance(self.critic, str) else type(self.critic).__name__,
            "critic_fingerprint": _fingerprint(critic),
            "n_particles": self.n_particles,
            "horizon": self.horizon,
            "success": self.success,
            "finished": "retire",
            "scheme": "systematic",
        }

    def jobs(self) -> Iterator[tuple[int, Task, Method]]:
        """Every run, in an order in which an interruption leaves methods with the same tasks."""
        return ((seed, task, method) for seed in self.seeds for task in self.tasks for method in self.methods)


def steered_blindly(method: Method) -> bool:
    """The method resamples and does not see rewards: its critic must predict the whole return."""
    return method.hide_rewards and method.resample != Never()


def predicts_return(critic: Critic) -> bool:
    """The critic predicts the whole return, so that it can also score a finished trajectory."""
    return getattr(critic, "predicts", "future") == "return"


def run_seed(seed: int, task_id: str, method: str) -> int:
    """The seed of one run: the same on every machine, and unrelated to those of other runs."""
    words = [seed, zlib.crc32(task_id.encode()), zlib.crc32(method.encode())]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


async def run_one(comparison: Comparison, seed: int, task: Task, method: Method, agent: Any) -> tuple[Record, Run]:
    """One run and its record."""
    critic = comparison.critic_of(method)
    graph = amc(
        agent,
        critic,
        n_particles=comparison.size_of(method),
        resample=method.resample,
        beta=method.beta,
        hide_rewards=method.hide_rewards,
        environment=lambda _: (comparison.environment(), task),
        finished="retire",
        horizon=comparison.horizon,
        seed=run_seed(seed, task.id, method.name),
        config=Config(),  # A comparison is what its folder says it is, whatever the environment.
    )
    begun = time.perf_counter()
    run = await graph.arun({"messages": [("user", task.instruction)]})
    seconds = time.perf_counter() - begun
    scores = scores_of(
        run,
        single=comparison.size_of(method) == 1,
        pick_means_something=predicts_return(critic),
        success=comparison.success,
    )
    return Record(method.name, task.id, seed, scores, cost_of(run, seconds), run.notes), run


async def compare(
    comparison: Comparison,
    out: str | Path,
    *,
    resume: bool = False,
    n_concurrent: int = 8,
    progress: Progress | None = None,
    worker: str = "",
) -> list[Record]:
    """Every run of a comparison that `out` does not hold yet.

    Args:
        comparison: what to run.
        out: the results folder.
        resume: go on with what `out` holds.
        n_concurrent: runs at the same time; their particles share the model's batches.
        progress: called after each run.
        worker: name of this process's file, where several share the folder.

    Returns:
        The comparison's records, those of earlier calls included.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results of other settings.
    """
    methods = {method.name: method.as_plain() for method in comparison.methods}
    with ResultsFolder(out, comparison.settings, methods, resume=resume, worker=worker) as folder:
        done = {record.key for record in read_records(out)}
        agents = {method.temperature: comparison.agent(method.temperature) for method in comparison.methods}
        limit = asyncio.Semaphore(n_concurrent)

        async def play(seed: int, task: Task, method: Method) -> None:
            async with limit:
                record, run = await run_one(comparison, seed, task, method, agents[method.temperature])
            folder.add(record)
            if progress is not None:
                progress(record, run)

        todo = [job for job in comparison.jobs() if (job[2].name, job[1].id, job[0]) not in done]
        running = [asyncio.create_task(play(*job)) for job in todo]
        try:
            await asyncio.gather(*running)
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return records_of(comparison, out)


def records_of(comparison: Comparison, out: str | Path) -> list[Record]:
    """The records of a folder that belong to a comparison, in the comparison's order."""
    found = {record.key: record for record in read_records(out)}
    keys = [(method.name, task.id, seed) for seed, task, method in comparison.jobs()]
    return [found[key] for key in keys if key in found]


def _fingerprint(critic: Critic) -> str | None:
    """Names a value model's weights by what they answered to the prompts kept with them."""
    checkpoint = getattr(critic, "checkpoint", None)
    if checkpoint is None:
        return None
    answers = [checkpoint.base_model_hash, checkpoint.data_hash, *(one.score for one in checkpoint.golden)]
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16]
