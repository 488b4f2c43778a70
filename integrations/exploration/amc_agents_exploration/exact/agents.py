"""Classic posterior sampling and information-directed sampling over any exact model."""

from __future__ import annotations

from typing import Any, Generic

import numpy as np

from amc_agents.psrl.ids import least_information_ratio
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.exact.model import ExactModel, InformedModel, Policy, PriorT


class ClassicPosteriorSampling(Generic[PriorT]):
    """Algorithm 1 of LLM-PSRL: a hypothesis per episode, its optimal policy, and one update.

    On a bandit, where an episode is a single pull, this is Thompson sampling.

    Args:
        model: provides the prior, the update and the plan.
        posterior: initial posterior; None for the model's prior.
    """

    def __init__(self, model: ExactModel[PriorT], posterior: PriorT | None = None) -> None:
        self._model = model
        self.posterior = posterior
        """Current posterior; None before the first episode."""
        self.hypothesis: Any = None
        """Hypothesis of the current episode."""
        self._policy: Policy | None = None

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Draw a hypothesis and plan for it."""
        if self.posterior is None:
            self.posterior = self._model.prior(task)
        self.hypothesis = self.posterior.sample(rng)
        self._policy = self._model.policy(task, self.hypothesis)

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the optimal action under the hypothesis."""
        assert self._policy is not None
        return Step(self._policy(trajectory))

    async def observe(self, trajectory: Trajectory) -> None:
        """Do nothing: the agent learns at the end of an episode."""

    async def end(self, trajectory: Trajectory) -> None:
        """Learn from every step of the episode."""
        assert self.posterior is not None
        for step in trajectory.steps:
            self.posterior = self._model.updated(self.posterior, step)


class ClassicInformationDirected(Generic[PriorT]):
    """Information-directed sampling with exact regret and information, learning after every step.

    It looks one step ahead, as in the paper: information that only a later step can use counts, but the information
    that an action makes available to later steps does not.

    Args:
        model: provides the prior, the update, regret and information.
        posterior: initial posterior; None for the model's prior.
    """

    def __init__(self, model: InformedModel[PriorT], posterior: PriorT | None = None) -> None:
        self._model = model
        self.posterior = posterior
        """Current posterior; None before the first episode."""
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Set the generator of the episode. Nothing is drawn before the first step."""
        if self.posterior is None:
            self.posterior = self._model.prior(task)
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Draw from the distribution with the least information ratio."""
        assert self.posterior is not None
        stakes = self._model.stakes(self.posterior, trajectory)
        decision = least_information_ratio(stakes.regrets, stakes.gains)
        return Step(stakes.actions[int(self._rng.choice(len(stakes.actions), p=decision.probabilities))])

    async def observe(self, trajectory: Trajectory) -> None:
        """Learn from the last step."""
        assert self.posterior is not None
        self.posterior = self._model.updated(self.posterior, trajectory.steps[-1])

    async def end(self, trajectory: Trajectory) -> None:
        """Do nothing: the agent learns after every step."""
