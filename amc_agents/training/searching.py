"""Draw the trajectories of a dataset from AMC's weighted particles, for a policy that learns from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amc_agents.config import Config
from amc_agents.errors import ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.settings import AmcSettings
from amc_agents.smc import AtSteps, systematic
from amc_agents.training.policy.imitated import SEARCH
from amc_agents.types import Trajectory


@dataclass(frozen=True)
class Search:
    """AMC with a critic. Its trajectories follow the target pi(.) exp(R / beta), no longer the policy."""

    critic: str
    at: tuple[int, ...] = (4,)
    """Steps after which to resample."""
    beta: float = 0.1
    """Of the target, in reward units."""

    def __post_init__(self) -> None:
        """Refuse a search without a target."""
        if self.beta <= 0:
            raise ConfigurationError(f"beta is {self.beta:g}: expected a number above 0, in reward units")

    @property
    def settings(self) -> dict[str, Any]:
        """What a dataset records of it."""
        return {SEARCH: {"critic": self.critic, "at": list(self.at), "beta": self.beta}}

    async def trajectories(
        self, agent: Any, given: Mapping[str, Any], n: int, *, horizon: int, seed: int, **options: Any
    ) -> list[Trajectory]:
        """Run AMC with n particles, and draw n trajectories by their weights.

        Args:
            agent: a compiled graph.
            given: its input.
            n: number of particles.
            horizon: maximum number of steps.
            seed: seed of the run and of the draws.
            **options: other arguments of `amc`.
        """
        settings = replace(options.pop("settings", AmcSettings()), config=Config())
        graph = amc(
            agent, n_particles=n, critic=self.critic, resample=AtSteps(*self.at), beta=self.beta, settings=settings,
            horizon=horizon, seed=seed, **options,
        )  # fmt: skip
        run = await graph.arun(given)
        await run.aclose()
        drawn = systematic(np.random.default_rng(seed), run.population.log_weights, n)
        return [run.population.trajectories[index] for index in drawn.tolist()]
