"""LLM-PSRL: posterior sampling for reinforcement learning, with language models in its three roles (algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from amc_agents.models.seeding import use_rng
from amc_agents.psrl.learning import Exact, Learning, LearningAgent, resolved
from amc_agents.psrl.posterior.updates import PosteriorMemory
from amc_agents.psrl.roles import SamplePolicy, Sampler, Updater
from amc_agents.types import Step, Task, Trajectory


class LlmPosteriorSampling(LearningAgent):
    """One hypothesis an episode, the policy optimal for it, and a posterior in words that learns from what came of it.

    With a typed prior and the updater "exact" the posterior is the true one; with all three roles "exact" this is
    classic PSRL, and Thompson sampling on a bandit.

    Args:
        memory: where the posterior is kept, with its prior.
        sampler: draws the hypothesis.
        policy: acts on it.
        updater: writes the posterior anew.
        learning: when it does so, and what happens where it fails.
        cache_by: the state by which the policy's choices are kept for the rest of the episode, so that it is asked once
            for each state (appendix A.2). The policy then cannot depend on the time that is left. None: it is asked at
            every step.
        world: the rules, for all roles; None: the instruction of the episode's task.
    """

    def __init__(
        self,
        memory: PosteriorMemory,
        sampler: Sampler | Exact,
        policy: SamplePolicy | Exact,
        updater: Updater | Exact,
        *,
        learning: Learning | None = None,
        cache_by: Callable[[Trajectory], Hashable] | None = None,
        world: str | None = None,
    ) -> None:
        super().__init__(memory, updater, learning or Learning(), world)
        self.hypothesis = ""
        """What was drawn for the episode."""
        self._sampler, self._given_policy, self._cache_by = sampler, policy, cache_by
        self._policy: SamplePolicy | None = None
        self._chosen: dict[Hashable, Step] = {}

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Catch up on what the posterior does not account for, then draw a hypothesis.

        Raises:
            RoleError: no hypothesis could be drawn. Nothing has changed, and it can be tried again.
            UpdateError: what was seen before could not be learnt; it is kept.
        """
        await super().begin(task, rng)
        self._chosen = {}
        self._policy = self._policy or resolved(self._given_policy, "policy", task)
        sampler: Sampler = resolved(self._sampler, "sampler", task)
        self.hypothesis = await sampler.sample(self._world, self._posterior, rng)

    async def act(self, trajectory: Trajectory) -> Step:
        """The optimal action under the hypothesis.

        Raises:
            RoleError: the policy named none. What was seen until now is kept.
        """
        assert self._policy is not None
        if self._cache_by is None:
            return await self._acted(trajectory)
        state = self._cache_by(trajectory)
        if state not in self._chosen:
            self._chosen[state] = await self._acted(trajectory)
        return self._chosen[state]

    async def _acted(self, trajectory: Trajectory) -> Step:
        assert self._policy is not None
        with use_rng(self._rng):
            return await self._policy.act(self._world, self.hypothesis, trajectory)
