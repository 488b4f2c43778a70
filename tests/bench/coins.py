"""A world of coins, an agent that flips them, and a critic that knows what they are worth."""

from __future__ import annotations

import numpy as np

from amc_agents.bench.methods import Tuned
from amc_agents.models.seeding import particle_rng
from amc_agents.nodes.text_agent import text_agent
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import TimeStep

LENGTH = 4


class BitWorld:
    """Four actions, 0 or 1; the last one pays `pays(actions)`. Counts how many worlds were started."""

    started = 0

    def __init__(self, pays=lambda actions: float(all(actions))):
        self.pays, self.actions = pays, []

    async def reset(self, task):
        type(self).started += 1
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.actions.append(int(action))
        if len(self.actions) == LENGTH:
            return TimeStep.termination("end", self.pays(self.actions))
        return TimeStep.transition(f"{len(self.actions)} said")

    async def fork(self, seed):
        copy = BitWorld(self.pays)
        copy.actions = list(self.actions)
        return copy

    async def close(self):
        pass


class ShareOfOnes:
    """Expects the whole return to be likely where ones were said."""

    predicts = "return"

    async def values(self, trajectories):
        return np.array([np.mean([int(step.action) for step in one.steps]) for one in trajectories])


def coin_agent(temperature):
    def respond(messages):
        rng = particle_rng()
        bit = 1 if temperature == 0 else int(rng.integers(2))
        return f"Action: {bit}"

    return text_agent(ScriptedChatModel(respond=respond))


TUNED = Tuned(steps=(2,), beta=0.1)
