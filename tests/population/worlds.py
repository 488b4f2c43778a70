"""Small worlds and agents for the tests of `amc`."""

from __future__ import annotations

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.effects import effect
from amc_agents.runtime.text_agent import text_agent
from amc_agents.runtime.world import current_environment
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, TimeStep

TASK = Task("count", "Say numbers; their sum is your return.")


class SumWorld:
    """An action is a number and its own reward; the episode ends after `length` actions."""

    made = 0
    open = 0

    def __init__(self, length: int = 4) -> None:
        self.length, self.taken, self.closed = length, [], False
        type(self).made += 1
        type(self).open += 1

    async def reset(self, task):
        self.taken = []
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.taken.append(float(action))
        answer = TimeStep.termination if len(self.taken) == self.length else TimeStep.transition
        return answer(f"taken {sum(self.taken):g}", float(action))

    async def fork(self, seed):
        copy = type(self)(self.length)
        copy.taken = list(self.taken)
        return copy

    async def close(self):
        if not self.closed:
            self.closed = True
            type(self).open -= 1


class EndsByNine(SumWorld):
    """A world that also ends at the action 9."""

    async def step(self, action):
        answer = await super().step(action)
        return type(answer).termination(answer.observation, answer.reward) if action == "9" else answer


class ReturnSoFar:
    """A critic that predicts a multiple of the last reward and records the lengths of the trajectories in each call."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.batches = factor, []

    async def values(self, trajectories):
        self.batches.append([len(trajectory.steps) for trajectory in trajectories])
        return np.array([self.factor * trajectory.steps[-1].reward for trajectory in trajectories])


class Prefers:
    """A critic that prefers the particle in one slot."""

    def __init__(self, slot=0, gain=100.0):
        self.slot, self.gain = slot, gain

    async def values(self, trajectories):
        return self.gain * (np.arange(len(trajectories)) == self.slot)


def digits(messages):
    """A policy that answers with a random digit from the particle's stream."""
    rng = particle_rng() or np.random.default_rng()
    return f"Thought: any\nAction: {rng.integers(10)}"


def number_agent(respond=digits, delay=0.0):
    return text_agent(ScriptedChatModel(respond=respond, delay=delay))


def sum_world(state, length=4):
    return SumWorld(length), TASK


def start():
    return {"messages": [HumanMessage(TASK.instruction)]}


@tool
@effect("world")
async def say(number: int) -> str:
    """Say a number."""
    return (await current_environment().step(str(number))).observation


def tool_caller(n_calls=3, parallel=1):
    """A tool-calling policy: calls `say` in `n_calls` rounds, then answers."""

    def respond(messages):
        rounds = sum(isinstance(message, AIMessage) for message in messages)
        if rounds >= n_calls:
            last = [message for message in messages if isinstance(message, ToolMessage)][-1]
            return f"finished with {last.text}"
        rng = particle_rng() or np.random.default_rng()
        calls = [
            {"name": "say", "args": {"number": int(rng.integers(10))}, "id": f"call-{rounds}-{i}"}
            for i in range(parallel)
        ]
        return AIMessage("let me see", tool_calls=calls)

    return ScriptedChatModel(respond=respond)


@tool
def say_nothing() -> str:
    """Do nothing."""
    return "nothing"
