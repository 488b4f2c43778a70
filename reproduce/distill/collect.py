"""Collect the trajectories that AMC found on training tasks, drawn by their weights, for a policy to imitate.

python -m reproduce.distill.collect --world crafting --critic embedded:crafting --tasks 360 --out DATA
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amc_agents.bench.plan import ComparisonPlan, policy_model
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.settings import AmcSettings
from amc_agents.smc import AtSteps, systematic
from amc_agents.training.collecting import collect_from
from amc_agents.training.data_checks import SEARCH
from amc_agents.types import Task, Trajectory


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


def main() -> None:
    """Search with AMC on each task, and store as many trajectories as there are particles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", default="crafting")
    parser.add_argument("--critic", required=True)
    parser.add_argument("--resample-at", type=int, nargs="+", default=list(Search.at))
    parser.add_argument("--beta", type=float, default=Search.beta, help="in reward units")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--trajectories", type=int, default=15, help="particles of each task")
    parser.add_argument("--tasks", type=int, default=360)
    parser.add_argument("--model", help="default: the shipped policy of the world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="folder of the dataset; an interrupted collection resumes")
    given = parser.parse_args()
    search = Search(given.critic, tuple(given.resample_at), given.beta)
    plan = ComparisonPlan((), given.tasks, world=given.world, split="train", model=given.model)
    agent, make = text_agent(policy_model(plan.policy, given.temperature)), plan.world_spec.make

    async def play(task: Task, seed: int) -> list[Trajectory]:
        return await search.trajectories(
            agent, plan.input_of(task), given.trajectories, horizon=plan.horizon, seed=seed,
            environment=lambda state: (make(), task),
        )  # fmt: skip

    settings = {"temperature": given.temperature, "world": given.world, "seed": given.seed, **search.settings}
    new = asyncio.run(
        collect_from(play, plan.tasks(), given.out, policy=plan.policy, settings=settings, seed=given.seed)
    )
    print(f"{new} new trajectories in {given.out}")


if __name__ == "__main__":
    main()
