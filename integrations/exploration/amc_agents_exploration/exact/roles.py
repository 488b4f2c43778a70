"""Exact roles for worlds with a conjugate model: they parse the posterior's text and follow Bayes' rule.

With all three exact roles, LLM-PSRL is classic PSRL over a textual posterior, which is Thompson sampling on a bandit. A
single exact role isolates a language model's performance in the other roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.ids import Estimates
from amc_agents.psrl.posterior.priors import hypothesis_text, parse_prior, read_hypothesis
from amc_agents.psrl.roles import read_experience
from amc_agents.quoting import quoted
from amc_agents.types import Step, Trajectory
from amc_agents_exploration.exact.model import ExactModel, InformedModel


class ExactSampler:
    """Draws from a posterior that is the text of a typed prior."""

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """Draw a hypothesis. Raises `ConfigurationError` for a posterior of another form."""
        return hypothesis_text(parse_prior(posterior).sample(rng))


class ExactPolicy:
    """Acts optimally under a hypothesis in the form of `hypothesis_text`.

    Args:
        model: exact model of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model
        self._planned: tuple[str, Any] = "", None

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """Return the optimal action under the hypothesis."""
        if self._planned[0] != hypothesis:
            self._planned = hypothesis, self._model.policy(trajectory.task, read_hypothesis(hypothesis))
        return Step(self._planned[1](trajectory))


class ExactUpdater:
    """Applies Bayes' rule to a posterior that is the text of a typed prior.

    Args:
        model: exact model of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """Return the new posterior. Raises `ConfigurationError` for a posterior of another form."""
        typed: Any = parse_prior(posterior)
        for step in read_experience(experience):
            typed = self._model.updated(typed, step)
        return str(typed)


class ExactEstimator:
    """Exact estimates for a posterior that is the text of a typed prior.

    Args:
        model: exact model of the world.
    """

    def __init__(self, model: InformedModel) -> None:  # type: ignore[type-arg]
        self._model = model

    async def estimates(self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str]) -> Estimates:
        """Return the exact regret and information of the actions.

        Raises:
            ConfigurationError: the posterior is not the text of a typed prior, or the world does not have an action.
        """
        stakes = self._model.stakes(parse_prior(posterior), trajectory)
        if missing := [action for action in actions if action not in stakes.actions]:
            raise ConfigurationError(f"{quoted(missing[0])} is not an action of the world: {', '.join(stakes.actions)}")
        rows = [stakes.actions.index(action) for action in actions]
        return Estimates(stakes.regrets[rows], stakes.gains[rows])
