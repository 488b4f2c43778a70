"""A walk on the whole numbers that ends at its lowest number, as a forkable world, and a policy that walks."""

from __future__ import annotations

from collections import Counter

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from amc_agents.models.seeding import particle_rng
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


calls = Counter()


class Steps(BaseChatModel):
    """Walks up or down with probability 1/2 each, and counts its calls."""

    @property
    def _llm_type(self):
        return "steps"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        calls["policy"] += 1
        action = "up" if particle_rng().random() < 0.5 else "down"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Action: {action}"))])
