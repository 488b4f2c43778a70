"""Learning for agents with a posterior: each step is applied once, even after an interruption."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from amc_agents.errors import UpdateError
from amc_agents.logs import log, room_logger
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
from amc_agents.types import Step

_log = room_logger(__name__)


@dataclass(frozen=True)
class Learning:
    """Settings of posterior updates."""

    update: Literal["trajectory", "step"] = "trajectory"
    """When to call the updater: once at the end of an episode, or after each step, which costs more and makes fewer
    mistakes (appendix B.1)."""
    guard: Guard | None = dropped_statements
    """Finds statements that an update dropped; None for an updater that follows Bayes' rule exactly."""
    on_update_error: Literal["raise", "keep"] = "raise"
    """If an update fails, "keep" logs the failure and continues with the old posterior. In both cases the observations
    are stored and applied at the start of the next episode."""
    rewards: bool = True
    """Show each step's reward to the updater."""


@dataclass
class EpisodeProgress:
    """Number of steps of an episode that are stored as evidence."""

    episode: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Unique name of the episode. Evidence of the same name is applied once."""
    n_recorded: int = 0
    """Steps stored as evidence so far."""


class Learner:
    """Records evidence and updates one posterior.

    Args:
        memory: where the posterior is stored.
        updater: writes the new posterior.
        learning: settings of the updates.
    """

    def __init__(self, memory: PosteriorMemory, updater: Updater, learning: Learning) -> None:
        self.memory, self._updater, self._learning = memory, updater, learning
        self._guard = learning.guard
        self.failures: list[str] = []
        """Messages of the failed updates that were skipped."""

    async def catch_up(self, world: str) -> Version:
        """Apply all pending evidence and return the posterior.

        Raises:
            UpdateError: an update failed, and `on_update_error` is "raise".
        """
        try:
            return await apply_pending(self.memory, self._apply(world), self._guard)
        except UpdateError as error:
            return await self._after_failure(error)

    async def keep(self, progress: EpisodeProgress, steps: Sequence[Step], context: str = "") -> Evidence | None:
        """Store the new steps of an episode as evidence, without an update.

        Args:
            progress: the episode's progress, which is advanced.
            steps: all steps of the episode so far.
            context: text about the episode that precedes the steps.

        Returns:
            The evidence, or None if no step is new.
        """
        first, n_steps = progress.n_recorded, len(steps)
        if n_steps <= first:
            return None
        text = experience(steps[first:], first=first, rewards=self._learning.rewards)
        text = f"{context}\n\n{text}" if context else text
        evidence = Evidence(progress.episode, text, f"{progress.episode}/{first}-{n_steps}")
        await self.memory.record(evidence)
        progress.n_recorded = n_steps
        return evidence

    async def learn(self, world: str, evidence: Evidence) -> Version:
        """Apply stored evidence and return the posterior.

        Raises:
            UpdateError: the update failed, and `on_update_error` is "raise".
        """
        try:
            return await update_posterior(self.memory, self._apply(world), evidence, self._guard)
        except UpdateError as error:
            return await self._after_failure(error)

    def _apply(self, world: str) -> Any:
        async def apply(posterior: str, evidence: Evidence) -> str:
            return await self._updater.update(world, posterior, evidence.observation, evidence.must_keep)

        return apply

    async def _after_failure(self, error: UpdateError) -> Version:
        if self._learning.on_update_error == "raise":
            raise error
        log(_log, logging.WARNING, "posterior.kept", "%(text)s", text=error)
        self.failures.append(str(error))
        return await self.memory.head()
