"""A perfect critic of crafting: it asks the world's own planner. An oracle, for the upper bound of a table alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.envs.crafting.planner import plan
from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld
from amc_agents.types import FloatArray, Task, Trajectory

WASTED = 5.0
"""Log-odds that a wasted step costs: more than the prior of any candidate can outweigh at K <= 100."""
NEVER = 50
"""Steps that are taken to be wasted where the goal can no longer be reached."""


class PlannerCritic:
    """Q of a trajectory: how many steps of it brought the goal no nearer, by the planner's way from here.

    It reads the recipes from the instruction and carries every action out in a world of its own, so it knows what an
    action does before it is done.
    """

    predicts = "return"

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` -5 for each wasted step; 0 where there is none."""
        return np.array([-WASTED * await self.wasted(one) for one in trajectories], dtype=np.float64)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` the same as a number in (0, 1]."""
        return np.exp(await self.log_odds(trajectories))

    async def wasted(self, trajectory: Trajectory) -> int:
        """How many steps of it brought the goal no nearer; `NEVER` where it can no longer be reached."""
        payload = self.task(trajectory)
        world = CraftingWorld()
        await world.reset(self._tasks[trajectory.task.instruction])
        for number, step in enumerate(trajectory.steps, start=1):
            if (await world.step(step.action)).done:
                return number - payload.optimal_steps
        ahead = plan(payload.book, payload.goal, inventory=world.inventory)
        return NEVER if ahead is None else len(trajectory.steps) + len(ahead) - payload.optimal_steps

    def task(self, trajectory: Trajectory) -> CraftingTask:
        """Its recipes, goal and optimal number of steps, read from the instruction."""
        instruction = trajectory.task.instruction
        if instruction not in self._tasks:
            self._tasks[instruction] = parse_instruction(instruction)
        payload = self._tasks[instruction].payload
        assert isinstance(payload, CraftingTask)
        return payload
