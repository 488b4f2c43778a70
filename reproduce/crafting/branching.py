"""Collect trajectories that branch: several continuations of the same state. The library has no such option.

Independent trajectories of a task rarely meet after the first steps, so every state has a single return, which is a
noisy target. Trajectories that share a prefix give a state several returns: the mean-exp of eq. 5 averages over them,
and so does the squared error of eq. 7 (AMC, section 2.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents import AmcSettings, amc
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError
from amc_agents.smc import Adaptive, AtSteps
from amc_agents.training.collecting import Rollouts
from amc_agents.types import Environment, Task, Trajectory

_LABEL = 0xB7A4C
"""Keeps the draw of the steps apart from other draws with the same seed."""


@dataclass(frozen=True)
class Branching:
    """How the trajectories of a task branch: all split in two at each of log2(`branches`) steps.

    A trajectory that has ended before a split counts twice from then on, like the two that a running one becomes.
    Otherwise early endings would be underrepresented among the continuations of their states.
    """

    branches: int
    """Number of trajectories that a trajectory becomes: 2, 4, 8, ..."""
    at: tuple[int, ...] = ()
    """Steps after which all split; empty: drawn for each task, evenly over the first half of the horizon."""

    def __post_init__(self) -> None:
        """Check the number and the steps."""
        if self.branches < 2 or self.branches & (self.branches - 1):
            raise ConfigurationError(f"branches is {self.branches}: expected 2, 4, 8 or another power of 2")
        if self.at and (len(set(self.at)) != self.splits or min(self.at) < 1):
            raise ConfigurationError(
                f"{self.branches} branches need {self.splits} different steps of at least 1 (a split doubles the "
                f"trajectories), got {', '.join(map(str, self.at))}"
            )

    @property
    def splits(self) -> int:
        """Number of splits."""
        return self.branches.bit_length() - 1

    def starts(self, n_trajectories: int) -> int:
        """Return the number of trajectories before the first split.

        Raises:
            ConfigurationError: `n_trajectories` is no multiple of the branches.
        """
        if n_trajectories % self.branches or n_trajectories < self.branches:
            raise ConfigurationError(
                f"{n_trajectories} trajectories of a task cannot have {self.branches} branches each: expected a "
                f"multiple of {self.branches}"
            )
        return n_trajectories // self.branches

    def schedule(self, horizon: int, seed: int) -> AtSteps:
        """Return the steps at which the trajectories of a task split.

        Raises:
            ConfigurationError: the horizon is too short for the splits.
        """
        if self.at:
            return AtSteps(*sorted(self.at))
        steps = np.arange(1, max(2, horizon // 2 + 1))
        if len(steps) < self.splits or horizon < 2:
            raise ConfigurationError(
                f"a horizon of {horizon} is too short for {self.splits} splits in its first half: give fewer branches, "
                "or the steps"
            )
        rng = np.random.default_rng([_LABEL, seed])
        return AtSteps(*sorted(rng.choice(steps, self.splits, replace=False).tolist()))

    def rollouts(
        self, agent: Any, environment: Callable[[], Environment], n_trajectories: int, *, horizon: int
    ) -> Rollouts:
        """Draw branching trajectories by `amc`: `collect(..., play=...)`.

        Raises:
            ConfigurationError: `n_trajectories` is no multiple of the branches.
        """
        starts = self.starts(n_trajectories)

        async def play(task: Task, seed: int) -> list[Trajectory]:
            # All weights are equal, so every particle gets two offspring where the population doubles. A chosen beta
            # would wait for values that differ before it splits.
            graph = amc(
                agent,
                critic="uniform",
                settings=AmcSettings(config=Config(), hide_rewards=True, finished="keep"),
                n_particles=Adaptive(starts, n_trajectories),
                resample=self.schedule(horizon, seed),
                beta=1.0,
                select="weight",
                horizon=horizon,
                seed=seed,
                environment=lambda state: (environment(), task),
            )
            run = await graph.arun({"messages": [("user", task.instruction)]})
            await run.aclose()
            trajectories = run.population.trajectories
            failures = run.population.failed or (False,) * len(trajectories)
            kept = [trajectory for trajectory, failed in zip(trajectories, failures, strict=True) if not failed]
            # If all ended before a split, there was nothing left to split.
            return kept * (n_trajectories // len(trajectories))

        return play

    @property
    def settings(self) -> dict[str, Any]:
        """What a dataset records of it."""
        return {"branches": self.branches, **({"branch_at": list(self.at)} if self.at else {})}
