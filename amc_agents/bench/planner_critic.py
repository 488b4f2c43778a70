"""An oracle critic of the crafting world, which uses the world's planner: the upper bound of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.envs.crafting.tasks import parse_instruction, plan
from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld
from amc_agents.types import FloatArray, Task, Trajectory

WASTED = 5.0
"""Cost of a wasted step in log-odds: more than the prior of any candidate can outweigh at K <= 100."""
NEVER = 50
"""Number of wasted steps if the goal can no longer be reached."""


class PlannerCritic:
    """Judges a trajectory by its wasted steps, using the planner's solution from the current state.

    It reads the recipes from the instruction and carries out every action in its own world, so it sees the outcome of
    an action in advance.
    """

    predicts = "return"

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` -5 for each wasted step."""
        return np.array([-WASTED * await self.wasted(trajectory) for trajectory in trajectories], dtype=np.float64)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` the exponential of the log-odds, in (0, 1]."""
        return np.exp(await self.log_odds(trajectories))

    async def wasted(self, trajectory: Trajectory) -> int:
        """Count the steps that brought the goal no nearer; `NEVER` if it can no longer be reached."""
        payload = self.task(trajectory)
        world = CraftingWorld()
        await world.reset(self._tasks[trajectory.task.instruction])
        for number, step in enumerate(trajectory.steps, start=1):
            if (await world.step(step.action)).done:
                return number - payload.optimal_steps
        ahead = plan(payload.book, payload.goal, inventory=world.inventory)
        return NEVER if ahead is None else len(trajectory.steps) + len(ahead) - payload.optimal_steps

    def task(self, trajectory: Trajectory) -> CraftingTask:
        """Read the recipes, the goal and the optimal number of steps from the instruction."""
        instruction = trajectory.task.instruction
        if instruction not in self._tasks:
            self._tasks[instruction] = parse_instruction(instruction)
        payload = self._tasks[instruction].payload
        assert isinstance(payload, CraftingTask)
        return payload
