"""Runs methods x tasks x seeds, several at a time, and keeps each result as it ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.language_models import BaseChatModel

from amc_agents.bench.decisions import DecisionsFile, RunDecisions
from amc_agents.bench.methods import Method
from amc_agents.bench.oracle import for_task
from amc_agents.bench.records import ResultsFolder, RunResult, read_run_results
from amc_agents.bench.scores import cost_of, particles_of, scores_of
from amc_agents.concurrency.background import run_in_background
from amc_agents.config import Config
from amc_agents.critics.adapting import connect
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import for_amc
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.errors import ConfigurationError
from amc_agents.lac.decision import Imagination, LacSettings
from amc_agents.lac.node import actor_critic_model
from amc_agents.lac.text_scoring import TextScorer
from amc_agents.population.graph import amc
from amc_agents.run import Run
from amc_agents.runtime.deciding_model import Sink
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import Never
from amc_agents.types import Critic, Environment, Task

PolicyFunction = Callable[[float], BaseChatModel]
"""Sampling temperature -> the policy."""
AgentFunction = Callable[[BaseChatModel], Any]
"""A chat model -> a compiled graph that is driven by it."""
Progress = Callable[[RunResult, Run], None]
"""Called after each run."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what."""

    policy: PolicyFunction
    environment: Callable[[], Environment]
    """Makes a fresh world."""
    tasks: Sequence[Task]
    methods: Sequence[Method]
    agent: AgentFunction = text_agent
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
    imagination: Callable[[int], Imagination] | None = None
    """Steps -> the forward model of decisions that imagine so many; None: the policy, asked as a chat model."""
    scorer: Callable[[], TextScorer] | None = None
    """Scores texts by the policy, for decisions whose prior needs it."""
    actions: Sequence[str] | None = None
    """All that can be done at any step, for methods whose candidates are these."""

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
            if method.listed and self.actions is None:
                raise ConfigurationError(f"{method.name} decides among all actions, and this world lists none")
        # Made here, where no event loop waits: a critic behind a server is asked what it is.
        self._parsed(self.critic)
        for method in self.methods:
            if steered_blindly(method) and not predicts_return(self.critic_of(method)):
                raise ConfigurationError(
                    f"{method.name} hides rewards, so its critic must predict the whole return, and "
                    f"{self.critic!r} predicts what is still to come: train one with target 'return', or leave it out"
                )
            if method.decision is None:
                # An eq. 5 model for another beta is refused now, not by the first run that weighs with it.
                for_amc(self.critic_of(method), beta=method.beta, success_reward=method.success_reward)

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
            self._critics[critic] = ready_critic(critic)
        return self._critics[critic]

    def model_of(self, method: Method, task: Task, sink: Sink | None = None) -> BaseChatModel:
        """The chat model that drives a method's agent: the policy, or one that decides among the policy's samples.

        Args:
            method: one of the methods.
            task: what is played; an oracle is told, nobody else.
            sink: is given the record of each decision.
        """
        policy, settings = self.policy(method.temperature), method.decision
        if settings is None:
            return policy
        imagines = settings.use_critic and settings.depth and self.imagination is not None
        scores = settings.prior != "frequency" and self.scorer is not None
        critic = self.critic_of(method)
        deciding = actor_critic_model(
            policy,
            for_task(critic, task) if method.oracle else critic,
            **_options(settings),
            world_model=self.imagination(settings.depth) if imagines and self.imagination else None,
            scorer=self.scorer() if scores and self.scorer else None,
            actions=self.actions if method.listed else None,
            config=Config(),
        )
        return deciding.model_copy(update={"sink": sink})

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
            # Of the methods that do not say otherwise.
            "finished": "retire",
            "scheme": "systematic",
        }

    @property
    def method_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each method as plain values: what a resumed run must share."""
        return {method.name: method.as_plain() | self._fingerprint_of(method) for method in self.methods}

    def _fingerprint_of(self, method: Method) -> dict[str, Any]:
        # The comparison's own critic is told by `settings`.
        judged = method.decision is not None and method.decision.use_critic and method.critic is not None
        return {"critic_fingerprint": _fingerprint(self.critic_of(method))} if judged else {}

    def jobs(self) -> Iterator[tuple[int, Task, Method]]:
        """Every run, in an order in which an interruption leaves methods with the same tasks."""
        return ((seed, task, method) for seed in self.seeds for task in self.tasks for method in self.methods)


def ready_critic(spec: str) -> Critic:
    """The critic of a string, able to say what it predicts: one behind a server is connected. Not for event loops."""
    critic = parse_critic(spec)
    if hasattr(critic, "connect"):
        run_in_background(connect(critic), n_workers=1)
    return critic


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


async def run_one(
    comparison: Comparison, seed: int, task: Task, method: Method, *, sink: Sink | None = None
) -> tuple[RunResult, Run]:
    """One run and its record; `sink` is given the records of its decisions, where the method makes any."""
    critic = comparison.critic_of(method)
    graph = amc(
        comparison.agent(comparison.model_of(method, task, sink)),
        "uniform" if method.decision else critic,
        n_particles=comparison.size_of(method),
        resample=method.resample,
        beta=method.beta,
        success_reward=method.success_reward,
        hide_rewards=method.hide_rewards,
        environment=lambda _: (comparison.environment(), task),
        scheme=method.scheme,
        finished=method.finished,
        horizon=comparison.horizon,
        seed=run_seed(seed, task.id, method.name),
        config=Config(),  # A comparison is what its folder says it is, whatever the environment.
    )
    begun = time.perf_counter()
    run = await graph.arun({"messages": [("user", task.instruction)]})
    seconds = time.perf_counter() - begun
    scores = scores_of(
        run,
        single=comparison.size_of(method) == 1 and not method.oracle,
        pick_means_something=predicts_return(critic) and not method.oracle,
        success=comparison.success,
    )
    return RunResult(method.name, task.id, seed, scores, cost_of(run, seconds), run.notes, particles_of(run)), run


async def compare(
    comparison: Comparison,
    out: str | Path,
    *,
    resume: bool = False,
    n_concurrent: int = 8,
    progress: Progress | None = None,
    worker: str = "",
    keep_decisions: bool = False,
) -> list[RunResult]:
    """Every run of a comparison that `out` does not hold yet.

    Args:
        comparison: what to run.
        out: the results folder.
        resume: go on with what `out` holds.
        n_concurrent: runs at the same time; their particles share the model's batches.
        progress: called after each run.
        worker: name of this process's file, where several share the folder.
        keep_decisions: keep every decision too (`amc_agents.bench.decisions`), for methods that make any.

    Returns:
        The comparison's records, those of earlier calls included.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results of other settings.
    """
    folder = ResultsFolder(out, comparison.settings, comparison.method_settings, resume=resume, worker=worker)
    with ExitStack() as open_files:
        open_files.enter_context(folder)
        decisions = open_files.enter_context(DecisionsFile(out, worker)) if keep_decisions else None
        done = {record.key for record in read_run_results(out)}
        limit = asyncio.Semaphore(n_concurrent)

        async def play(seed: int, task: Task, method: Method) -> None:
            made: list[dict[str, Any]] = []
            async with limit:
                record, run = await run_one(comparison, seed, task, method, sink=made.append)
            # Before the record: what has one is not played again.
            if decisions is not None and made:
                decisions.add(RunDecisions(method.name, task.id, seed, record.scores.success > 0, tuple(made)))
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


def records_of(comparison: Comparison, out: str | Path) -> list[RunResult]:
    """The records of a folder that belong to a comparison, in the comparison's order."""
    found = {record.key: record for record in read_run_results(out)}
    keys = [(method.name, task.id, seed) for seed, task, method in comparison.jobs()]
    return [found[key] for key in keys if key in found]


def _options(settings: LacSettings) -> Any:
    """The settings as arguments of `actor_critic_model`."""
    return asdict(settings)


def _fingerprint(critic: Critic) -> str | None:
    """Names a trained critic by what it answered to the prompts kept with it, and by what makes values of that."""
    # A verdict critic's is with what reads it; one behind a server is not known before it is asked.
    checkpoint = getattr(getattr(critic, "reader", critic), "checkpoint", None)
    if checkpoint is None:
        return None
    answers = [checkpoint.base_model_hash, checkpoint.data_hash, *(one.score for one in checkpoint.golden)]
    if isinstance(checkpoint, ValueCheckpoint) and checkpoint.conversion():
        answers.append(checkpoint.conversion())
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16]
