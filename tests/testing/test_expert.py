from __future__ import annotations

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents import amc, text_agent, use_environment
from amc_agents.envs import ReplayFork
from amc_agents.envs.crafting import CraftingWorld
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.models.seeding import use_rng
from amc_agents.testing import noisy_expert
from amc_agents.types import Task, TimeStep

TASK = Task("count/0", "Count to five.")


class Counting:
    """Five right numbers in a row pay 1; the expert knows the next number."""

    def __init__(self, seed: int = 0) -> None:
        self.count = 0

    async def reset(self, task: Task) -> TimeStep:
        self.count = 0
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        self.count += action == self.expert_action()
        return TimeStep.termination("done", 1.0) if self.count == 5 else TimeStep.transition(str(self.count))

    async def close(self) -> None:
        pass

    def expert_action(self) -> str:
        return str(self.count + 1)

    def random_action(self, rng: np.random.Generator) -> str:
        return f"-{rng.integers(1, 9)}"


async def played(model, rng):
    world = ReplayFork(Counting)
    await world.reset(TASK)
    with use_environment(world), use_rng(rng):
        return [model.invoke([HumanMessage("go on")]).text for _ in range(200)]


async def test_errors_come_at_their_rate_and_from_the_particles_random_stream():
    texts = await played(noisy_expert(0.3), np.random.default_rng(4))
    assert set(texts) > {"Action: 1", "Action: -3"}
    assert 35 <= sum(text != "Action: 1" for text in texts) <= 85  # 60 expected; 99.98% of the binomial distribution
    assert texts == await played(noisy_expert(0.3), np.random.default_rng(4))


@pytest.mark.parametrize(("error_rate", "success"), [(0.0, 1.0), (1.0, 0.0)])
def test_it_plays_the_worlds_of_particles(error_rate, success):
    graph = amc(
        text_agent(noisy_expert(error_rate)),
        "uniform",
        environment=lambda state: (ReplayFork(Counting), TASK),
        n_particles=3,
        horizon=6,
    )
    run = graph.run({"messages": [("user", "go")]})
    assert run.best.return_ == success


def test_a_rate_that_is_no_probability_is_refused():
    with pytest.raises(ConfigurationError, match="from 0 to 1, got"):
        noisy_expert(1.5)


async def test_a_world_without_an_expert_is_refused():
    world = CraftingWorld()
    with use_environment(world), pytest.raises(ConfigurationError, match="got CraftingWorld"):
        noisy_expert(0.0).invoke([HumanMessage("go on")])


async def test_the_wrapped_world_is_there_between_reset_and_close():
    world = ReplayFork(Counting)
    with pytest.raises(EnvironmentStateError, match="before reset or after close"):
        _ = world.world
    await world.reset(TASK)
    assert isinstance(world.world, Counting)
    await world.close()
    with pytest.raises(EnvironmentStateError):
        _ = world.world
