"""Agents for tests, used as `explorers:...`."""

from __future__ import annotations

from amc_agents.errors import DecisionError
from amc_agents.types import Step

made: list[tuple[str, int, float | None]] = []
broken: set[str] = set()
"""Ids of tasks on which `stubborn` fails."""


class Stubborn:
    """Always takes the same action."""

    def __init__(self, action, task=""):
        self.action, self.task = action, task

    async def begin(self, task, rng):
        if self.task in broken:
            raise DecisionError(f"no luck with {self.task}")

    async def act(self, trajectory):
        return Step(self.action)

    async def observe(self, trajectory):
        pass

    async def end(self, trajectory):
        pass


def stubborn(task, seed, temperature=None):
    made.append((task.id, seed, temperature))
    return Stubborn(task.payload.actions[0], task.id)


def babbler(task, seed):
    """Wastes every turn."""
    return Stubborn("well, let me think")


class Failing(Stubborn):
    async def begin(self, task, rng):
        raise DecisionError(f"no luck with {self.task}")


def failing(task, seed):
    return Failing(task.payload.actions[0], task.id)


def nobody(task, seed):
    return object()
