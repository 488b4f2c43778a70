"""LLM-PSRL: posterior sampling for reinforcement learning with language models in its three roles (algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from amc_agents.models.seeding import use_rng
from amc_agents.psrl.learning import Exact, Learning, LearningAgent, resolved
from amc_agents.psrl.posterior.updates import PosteriorMemory
from amc_agents.psrl.roles import SamplePolicy, Sampler, Updater
from amc_agents.types import Step, Task, Trajectory


class LlmPosteriorSampling(LearningAgent):
    """Draws a hypothesis per episode, acts optimally under it, and updates a textual posterior from the outcome.

    With a typed prior and the updater "exact", the posterior is the true one. With all three roles "exact", this is
    classic PSRL, which is Thompson sampling on a bandit.

    Args:
        memory: where the posterior is stored, with its prior.
        sampler: draws the hypothesis.
        policy: acts on the hypothesis.
        updater: writes the new posterior.
        learning: settings of the updates.
        cache_by: maps a trajectory to a state. The policy's action in each state is then reused for the rest of the
            episode (appendix A.2), so it cannot depend on the time that is left. None calls the policy at every step.
        world: the rules, for all roles; None for the instruction of the episode's task.
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
        """Hypothesis of the current episode."""
        self._sampler, self._given_policy, self._cache_by = sampler, policy, cache_by
        self._policy: SamplePolicy | None = None
        self._chosen: dict[Hashable, Step] = {}

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Apply pending evidence, then draw a hypothesis.

        Raises:
            RoleError: no hypothesis could be drawn. Nothing has changed, and the call can be repeated.
            UpdateError: earlier observations could not be applied. They remain stored.
        """
        await super().begin(task, rng)
        self._chosen = {}
        self._policy = self._policy or resolved(self._given_policy, "policy", task)
        sampler: Sampler = resolved(self._sampler, "sampler", task)
        self.hypothesis = await sampler.sample(self._world, self._posterior, rng)

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the optimal action under the hypothesis.

        Raises:
            RoleError: the policy named no action. The steps so far are stored.
        """
        assert self._policy is not None
        if self._cache_by is None:
            return await self._policy_action(trajectory)
        state = self._cache_by(trajectory)
        if state not in self._chosen:
            self._chosen[state] = await self._policy_action(trajectory)
        return self._chosen[state]

    async def _policy_action(self, trajectory: Trajectory) -> Step:
        assert self._policy is not None
        with use_rng(self._rng):
            return await self._policy.act(self._world, self.hypothesis, trajectory)
