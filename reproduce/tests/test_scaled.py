"""The batched tries of reproduce/scaled."""

import asyncio

import pytest

from amc_agents.envs.registry import world
from reproduce.beyond.play import Policy
from reproduce.scaled.tries import Tries

WORLD = world("crafting-stock-hidden")
FIRST, SECOND = WORLD.tasks(2, "train", 900_000)


@pytest.mark.thorough
def test_tries_depend_on_their_seed_and_not_on_other_tasks():
    tries = Tries(Policy(str(WORLD.model)), 1.0, WORLD.make, 3, horizon=5)

    async def side_by_side():
        return await asyncio.gather(tries(FIRST, 0), tries(SECOND, 1), tries(FIRST, 2))

    first, second, other_seed = asyncio.run(side_by_side())
    assert asyncio.run(tries(FIRST, 0)) == first
    assert first != other_seed
    assert {each.task.id for each in second} == {SECOND.id}
    assert len({tuple(step.action for step in each.steps) for each in first}) > 1
    for each in (*first, *second):
        assert each.done
        assert len(each.steps) == 5 or not each.truncated
