"""A walk on the whole numbers that ends at its lowest number, as a forkable world."""

from __future__ import annotations

from amc_agents.types import Task, TimeStep


class Walk:
    def __init__(self, lowest: int) -> None:
        self.lowest, self.at = lowest, 0

    async def reset(self, task: Task) -> TimeStep:
        return TimeStep(task.instruction)

    async def step(self, action: str) -> TimeStep:
        self.at += 1 if action == "up" else -1
        return TimeStep(f"at {self.at}", terminated=self.at <= self.lowest)

    async def fork(self, seed: int) -> Walk:
        child = Walk(self.lowest)
        child.at = self.at
        return child

    async def close(self) -> None:
        return None
