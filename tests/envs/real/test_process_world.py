"""Text worlds in processes."""

import random

import pytest

from amc_agents.envs import ProcessWorld
from amc_agents.errors import EnvironmentStateError, WorldError
from amc_agents.testing import check_environment
from amc_agents.types import Task
from tests.envs.real.process_worlds import GlobalDice, OwnDice

TASK = Task("dice/1", "Roll three times.", 1)


@pytest.mark.thorough
@pytest.mark.parametrize("world", [GlobalDice, OwnDice])
async def test_it_keeps_the_contract_of_environments(world):
    await check_environment(lambda: ProcessWorld(world), TASK, ["roll"] * 3, stochastic=True)


async def test_the_callers_generator_is_neither_used_nor_changed():
    world = ProcessWorld(GlobalDice)
    random.seed(7)
    before = random.getstate()
    await world.reset(TASK)
    answers = [await world.step("roll") for _ in range(3)]
    assert random.getstate() == before
    random.seed(1)
    assert answers[-1].observation == str([random.randint(1, 6) for _ in range(3)])
    await world.close()


async def test_before_the_first_reset_there_is_no_process():
    world = ProcessWorld(GlobalDice)
    twin = await world.fork(1)
    with pytest.raises(EnvironmentStateError, match="step was called before reset or after close"):
        await twin.step("roll")
    await twin.close()
    await world.close()


async def test_a_world_that_dies_is_an_error():
    world = ProcessWorld(GlobalDice)
    await world.reset(TASK)
    with pytest.raises(WorldError, match="died"):
        await world.step("die")
    await world.close()
