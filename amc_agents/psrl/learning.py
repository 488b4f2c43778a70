"""What agents with a posterior share: accounting for steps, once each, whatever is interrupted."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from amc_agents.errors import UpdateError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.exact.known import exact_model
from amc_agents.psrl.exact.roles import ExactPolicy, ExactSampler, ExactUpdater
from amc_agents.psrl.experience import experience
from amc_agents.psrl.posterior.updates import (
    Evidence,
    Guard,
    PosteriorMemory,
    Version,
    apply_pending,
    dropped_statements,
    update_posterior,
)
from amc_agents.psrl.roles import Updater
from amc_agents.types import Step, Task, Trajectory

_log = logging.getLogger(__name__)

Exact = Literal["exact"]
"""In place of a role: exact, by the model of the task's world (`amc_agents.psrl.exact.exact_model`)."""


@dataclass(frozen=True)
class Learning:
    """How a posterior is updated."""

    update: Literal["trajectory", "step"] = "trajectory"
    """One call of the updater at the end of an episode, or one after each step: dearer, and fewer mistakes (appendix
    B.1)."""
    guard: Guard | None = dropped_statements
    """Finds what an update has dropped; an exact updater is not checked."""
    on_update_error: Literal["raise", "keep"] = "raise"
    """Where an update fails, "keep" goes on with the posterior as it is, and logs it. Either way the observations are
    kept, and applied at the next episode's start."""
    rewards: bool = True
    """The updater is told each step's reward."""


@dataclass
class Progress:
    """How much of an episode the posterior's evidence holds."""

    episode: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Name of the episode; unique, since evidence of the same name is applied once."""
    n_recorded: int = 0
    """Steps that are kept as evidence."""


class Learner:
    """Brings one posterior up to date.

    Args:
        memory: where it is kept.
        updater: writes it anew.
        learning: when and how.
    """

    def __init__(self, memory: PosteriorMemory, updater: Updater, learning: Learning) -> None:
        self.memory, self._updater, self._learning = memory, updater, learning
        self._guard = None if isinstance(updater, ExactUpdater) else learning.guard
        self.failures: list[str] = []
        """Updates that failed, and were let be."""

    async def catch_up(self, world: str) -> Version:
        """The posterior, after all evidence was applied that it does not account for yet.

        Raises:
            UpdateError: an update failed, and `on_update_error` is "raise".
        """
        try:
            return await apply_pending(self.memory, self._apply(world), self._guard)
        except UpdateError as error:
            return await self._kept(error)

    async def keep(self, progress: Progress, steps: Sequence[Step], told: str = "") -> Evidence | None:
        """Keep those steps of an episode as evidence that are not kept yet; nothing is asked.

        Args:
            progress: of the episode; it is moved on.
            steps: all of the episode until now.
            told: what the updater should know of the episode besides them.

        Returns:
            The evidence, or None where there is nothing new.
        """
        first, n_steps = progress.n_recorded, len(steps)
        if n_steps <= first:
            return None
        text = experience(steps[first:], first=first, rewards=self._learning.rewards)
        text = f"{told}\n\n{text}" if told else text
        evidence = Evidence(progress.episode, text, f"{progress.episode}/{first}-{n_steps}")
        await self.memory.record(evidence)
        progress.n_recorded = n_steps
        return evidence

    async def learn(self, world: str, evidence: Evidence) -> Version:
        """Account for evidence that was kept.

        Raises:
            UpdateError: the update failed, and `on_update_error` is "raise".
        """
        try:
            return await update_posterior(self.memory, self._apply(world), evidence, self._guard)
        except UpdateError as error:
            return await self._kept(error)

    def _apply(self, world: str) -> Any:
        async def apply(posterior: str, evidence: Evidence) -> str:
            return await self._updater.update(world, posterior, evidence.observation, evidence.must_keep)

        return apply

    async def _kept(self, error: UpdateError) -> Version:
        if self._learning.on_update_error == "raise":
            raise error
        _log.warning("%s", error)
        self.failures.append(str(error))
        return await self.memory.head()


class LearningAgent:
    """What every agent with a posterior does: it keeps what it sees, and learns from it when it is time.

    An episode that dies half-way loses nothing: what it saw is learnt when the next one begins.

    Args:
        memory: where the posterior is kept, with its prior.
        updater: writes it anew.
        learning: when it does so, and what happens where it fails.
        world: the rules, for all roles; None: the instruction of the episode's task.
    """

    def __init__(
        self, memory: PosteriorMemory, updater: Updater | Exact, learning: Learning, world: str | None
    ) -> None:
        self.memory = memory
        """Where the posterior is kept."""
        self._updater, self._learning, self._told_world = updater, learning, world
        self._world, self._posterior, self._rng = "", "", np.random.default_rng(0)
        self._learner: Learner | None = None
        self._progress = Progress()
        self._seen: tuple[Step, ...] = ()

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Catch up on what the posterior does not account for.

        Raises:
            UpdateError: what was seen before could not be learnt; it is kept.
        """
        self._rng = rng
        if self._learner is None:
            self._learner = Learner(self.memory, resolved(self._updater, "updater", task), self._learning)
        with use_rng(rng):
            await self._learner.keep(self._progress, self._seen)
            self._progress, self._seen = Progress(f"{task.id}#{uuid.uuid4().hex[:8]}"), ()
            self._world = self._told_world or task.instruction
            self._posterior = (await self._learner.catch_up(self._world)).text

    async def observe(self, trajectory: Trajectory) -> None:
        """With step-wise updates: learn from the last step."""
        self._seen = trajectory.steps
        if self._learning.update == "step":
            await self._learn()

    async def end(self, trajectory: Trajectory) -> None:
        """Learn from what was not learnt yet."""
        self._seen = trajectory.steps
        await self._learn()

    async def _learn(self) -> None:
        assert self._learner is not None  # `begin` has made it.
        evidence = await self._learner.keep(self._progress, self._seen)
        if evidence is not None:
            with use_rng(self._rng):
                self._posterior = (await self._learner.learn(self._world, evidence)).text


def resolved(role: Any, name: Literal["sampler", "policy", "updater"], task: Task) -> Any:
    """A role as it is, or the exact one for a task where it is "exact".

    Raises:
        ConfigurationError: its world has no exact model.
    """
    if role != "exact":
        return role
    if name == "sampler":
        return ExactSampler()
    return (ExactPolicy if name == "policy" else ExactUpdater)(exact_model(task))
