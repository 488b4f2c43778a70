"""A world of coins, an agent that flips them, and a critic that knows what they are worth."""

from __future__ import annotations

import numpy as np

from amc_agents.bench.comparison import Comparison
from amc_agents.bench.methods import Tuned, amc, amc_hidden, best_of_n, react, react_greedy, smc
from amc_agents.models.seeding import particle_rng
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, TimeStep

LENGTH = 4


class BitWorld:
    """Four actions, 0 or 1; the last action pays `pays(actions)`. Counts the started worlds."""

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
    """Predicts the whole return as the share of ones."""

    predicts = "return"

    async def values(self, trajectories):
        return np.array([np.mean([int(step.action) for step in trajectory.steps]) for trajectory in trajectories])


class Coins(ScriptedChatModel):
    """Answers 1 at temperature 0, and flips a coin at other temperatures."""

    temperature: float = 1.0

    def _result(self, messages):
        bit = 1 if self.temperature == 0 else int(particle_rng().integers(2))
        result = super()._result(messages)
        result.generations[0].message.content = f"Action: {bit}"
        return result


def coins(temperature):
    return Coins(respond=lambda messages: "", temperature=temperature)


class LikesOnes:
    """A perfect critic of single actions and of whole runs."""

    predicts = "return"

    async def log_odds(self, trajectories):
        return np.array([9.0 * int(trajectory.steps[-1].action) for trajectory in trajectories])

    async def values(self, trajectories):
        return 1 / (1 + np.exp(-await self.log_odds(trajectories)))


TUNED = Tuned(steps=(2,), beta=0.1)


def six_methods_of_coins():
    return [react(), react_greedy(), best_of_n(), smc(TUNED), amc(TUNED), amc_hidden(TUNED)]


def comparison_of_coins(n_tasks=3, methods=None, **settings):
    given = {"environment": BitWorld, "critic": ShareOfOnes(), "n_particles": 4, "horizon": 6, **settings}
    tasks = [Task(f"bits/{number}", f"Say bits, {number}.") for number in range(n_tasks)]
    return Comparison(policy=coins, tasks=tasks, methods=methods or six_methods_of_coins(), **given)
