"""An oracle critic of the workshop worlds, which uses the exact planner: the upper bound of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.bench.planner_critic import NEVER, PlannerCritic
from amc_agents.envs.workshop import WorkshopTask, WorkshopWorld, parse_instruction, solution_from
from amc_agents.types import FloatArray, Task, Trajectory

HORIZON = 20
"""Maximum number of steps in the registered worlds."""


class WorkshopCritic(PlannerCritic):
    """Judges a trajectory by the exact planner, which knows dead ends and the use of the forbidden item.

    `log_odds` judges actions by their wasted steps, as in the crafting world. `values` grades states for AMC: 0 if
    success is impossible within `HORIZON` steps, 1 after a success, and otherwise 1/2 plus half of the share of all
    steps that can still be wasted. These values order states; they are not probabilities.
    """

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` grades in [0, 1]."""
        return np.array([await self._grade(trajectory) for trajectory in trajectories], dtype=np.float64)

    async def wasted(self, trajectory: Trajectory) -> int:
        """Count the steps that brought the goal no nearer; `NEVER` in a dead end or after a failure."""
        task = self.workshop_task(trajectory)
        world, done = await played(task, trajectory)
        if done:
            return NEVER if world.spoiled else len(trajectory.steps) - task.payload.optimal_steps
        ahead = solution_from(task.payload, world)
        return NEVER if ahead is None else len(trajectory.steps) + ahead.n_steps - task.payload.optimal_steps

    async def _grade(self, trajectory: Trajectory) -> float:
        task = self.workshop_task(trajectory)
        world, done = await played(task, trajectory)
        if done:
            return 0.0 if world.spoiled else 1.0
        ahead = solution_from(task.payload, world)
        slack = -1 if ahead is None else HORIZON - len(trajectory.steps) - ahead.n_steps
        return 0.5 + 0.5 * slack / HORIZON if slack >= 0 else 0.0

    def task(self, trajectory: Trajectory) -> WorkshopTask:
        """Read recipes, stock, goal and forbidden item from the instruction."""
        payload = self.workshop_task(trajectory).payload
        assert isinstance(payload, WorkshopTask)
        return payload

    def workshop_task(self, trajectory: Trajectory) -> Task:
        """Read the task from the instruction."""
        text = trajectory.task.instruction
        if text not in self._tasks:
            self._tasks[text] = parse_instruction(text)
        return self._tasks[text]


async def played(task: Task, trajectory: Trajectory) -> tuple[WorkshopWorld, bool]:
    """Return a world in which the trajectory's actions were executed, and whether the episode ended."""
    world, done = WorkshopWorld(), False
    await world.reset(task)
    for step in trajectory.steps:
        done = (await world.step(step.action)).done
        if done:
            break
    return world, done
